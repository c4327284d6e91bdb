"""Listening where it was asked to, or one clear line."""

import asyncio
import socket
import ssl
import time

import pytest

from bidplane.errors import UserError
from bidplane.http.server.connection import HttpConnection
from bidplane.http.server.serve import bind, serve
from bidplane.runtime.identity.certificates import ensure


def test_any_free_port():
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_taken_port_is_one_clear_line():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on 127.0.0.1:{port}: .*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 65536), ("127.0.0.1", -1)])
def test_what_is_no_port_is_one_clear_line(host, port):
    with pytest.raises(UserError, match="cannot listen on"):
        bind(host, port)


def test_an_address_of_another_machine():
    with pytest.raises(UserError, match="cannot listen on 192"):
        bind("192.0.2.1", 0)


async def nothing(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_what_a_server_says_is_not_kept_until_the_last_was_acknowledged(tmp_path, monkeypatch):
    """A listener that `socket.create_server` made is one whose connections asyncio leaves so."""
    made = []
    connection_made = HttpConnection.connection_made

    def noted(self, transport):
        made.append(transport.get_extra_info("socket"))
        connection_made(self, transport)

    monkeypatch.setattr(HttpConnection, "connection_made", noted)

    async def story():
        listener = socket.create_server(("127.0.0.1", 0))
        certificates = ensure(tmp_path, hosts=["127.0.0.1"], now=time.time())
        serving = asyncio.create_task(serve(nothing, listener, certificates))
        try:
            trust = ssl.create_default_context(cafile=str(certificates.ca))
            reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trust)
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"204" in await reader.readline()
            assert made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(story())
