"""Handing a client on to a node that answers badly, or not at all."""

import asyncio
import ssl
import time

import pytest

from bidplane.errors import ApiError, Unavailable
from bidplane.runtime.identity import certificates
from bidplane.web.podstreams import NodeStreams

PATIENCE = 20.0
SWITCHES = b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
POD = {"metadata": {"name": "train", "namespace": "a", "uid": "u"}, "spec": {"nodeName": "n"}}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return certificates.ensure(folder, hosts=["127.0.0.1"], now=time.time())


class Host:
    def __init__(self, port):
        self._port = port

    async def get(self, kind, name, namespace=None):
        return {
            "metadata": {"name": name},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            },
        }


class Asking:
    """A client that wants to switch protocols; `taken` when its connection was."""

    protocol = "websocket"
    taken = False

    def take(self):
        self.taken = True
        raise ConnectionError("the test ends here")


def tunnelled(files, answer, *, seen=None):
    """Ask a node that says `answer` and hangs up."""

    async def whole():
        async def say(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if seen is not None:
                seen.append(head.decode())
            writer.write(answer)
            writer.close()

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(files.certificate, files.key)
        server = await asyncio.start_server(say, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        streams = NodeStreams(lambda: Host(port), token=lambda: "secret", ca_file=str(files.ca))
        client = Asking()
        headers = [
            (b"sec-websocket-key", b"k"),
            (b"authorization", b"Bearer the-agents-own"),
            (b"cookie", b"c"),
        ]
        params = [("command", "a b"), ("output", "1")]
        try:
            async with asyncio.timeout(PATIENCE):
                await streams.tunnel("host", POD, "exec", "ma/in", params, client, headers)
        finally:
            await streams.close()
            server.close()
            assert client.taken == (answer == SWITCHES), "who is not taken can still be answered"

    asyncio.run(whole())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 101 Switch",
        b"x" * 100_000,
        b"HTTP/1.1 500 Oops\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 500 Oops\r\n\r\nneither a length nor a chunk\r\n",
    ],
)
def test_a_node_that_answers_nonsense_does_not_answer(files, answer):
    with pytest.raises(Unavailable, match="the pod's node does not answer"):
        tunnelled(files, answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nno such",
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nno such\r\n0\r\n\r\n",
    ],
)
def test_a_nodes_refusal_is_passed_on_with_its_code(files, answer):
    with pytest.raises(ApiError, match="no such") as caught:
        tunnelled(files, answer)
    assert caught.value.code == 404


def test_what_the_node_is_asked(files):
    seen = []
    with pytest.raises(ConnectionError, match="ends here"):
        tunnelled(files, SWITCHES, seen=seen)
    (asked,) = seen
    assert asked.startswith("GET /exec/a/train/ma%2Fin?command=a+b&output=1 HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in asked, "the plane's own"
    assert "the-agents-own" not in asked
    assert "cookie" not in asked
    assert "sec-websocket-key: k\r\n" in asked
