"""
One HTTP connection of our servers: uvicorn's, and two things it has no word for.

An app that is asked to switch protocols finds `Upgrade` in its scope; it may answer as
usual, which refuses, or `take` the connection and speak whatever it likes on it. And the
certificate a client showed is in the request's state.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import MutableMapping
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bidplane.runtime.clientcerts import CLIENT_CERTIFICATE

_KEY = "bidplane.upgrade"
_BUFFER = 128 << 10  # bytes read ahead of whoever took the connection


class Upgrade:
    """A request to speak another protocol on this connection."""

    def __init__(self, connection: Connection, protocol: str) -> None:
        self._connection = connection
        self.protocol = protocol  # as the client wrote it, in lower case

    def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The raw connection; from now on the answer, from its first line, is the taker's."""
        return self._connection.hand_over()


def upgrade_of(scope: MutableMapping[str, Any]) -> Upgrade | None:
    """What a request wants to switch to, if it does."""
    found: Upgrade | None = (scope.get("extensions") or {}).get(_KEY)
    return found


def switching(headers: list[tuple[str, str]]) -> bytes:
    """The first lines of the answer to an upgrade that is taken."""
    lines = ["HTTP/1.1 101 Switching Protocols", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class _Joined:
    """
    A transport that sends the head of an answer with its body: one record, one system call.

    A head whose body is not there yet (a watch) goes out by itself, one turn of the loop later.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head: bytes | None = b""  # held; None once it is sent

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._transport.write(data)
        elif self._head:
            head, self._head = self._head, None
            self._transport.write(head + data)
        else:
            self._head = data
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        if self._head:
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    _ahead: bytearray | None = None  # what came after a request to switch

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The kernel else keeps a second small message until the first is acknowledged, for up to
        # 40 ms: an event after its watch's headers. asyncio asks for this only of sockets that
        # say their protocol, which `socket.create_server` and those it accepts do not.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        if shown:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: shown}

    def on_headers_complete(self) -> None:
        protocol = self._get_upgrade()
        if protocol is not None:
            self.scope["extensions"] = {_KEY: Upgrade(self, protocol.decode("latin-1"))}  # type: ignore[dict-item]
        super().on_headers_complete()
        self.cycle.transport = _Joined(self.transport, self.loop)  # type: ignore[assignment]

    def _should_upgrade(self) -> bool:
        return False  # the app decides, not uvicorn

    def data_received(self, data: bytes) -> None:
        if self._ahead is not None:
            self._ahead += data
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Everything after the request is in another protocol, or was never to be sent.
            self._ahead = bytearray(data[upgrade.args[0] :])
            self.cycle.keep_alive = False
            self.flow.pause_reading()
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def hand_over(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._ahead is None or self.cycle.response_started:
            raise RuntimeError("this connection was answered, or asks for no other protocol")
        # For uvicorn the exchange is over; the task that serves it goes on.
        self.cycle.response_started = self.cycle.response_complete = True
        self.cycle.message_event.set()
        self.connections.discard(self)
        reader = asyncio.StreamReader(limit=_BUFFER, loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.loop)
        writer = asyncio.StreamWriter(self.transport, protocol, reader, self.loop)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        if self._ahead:
            reader.feed_data(bytes(self._ahead))
        if self.transport.is_closing():
            reader.feed_eof()
        else:
            self.flow.resume_reading()
        return reader, writer
