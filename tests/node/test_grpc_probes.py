"""gRPC probes: a server that says by the standard protocol how it is, and servers that do not."""

import asyncio
import sys

import h2.config
import h2.connection
import h2.events
import pytest

from bidplane.node.process import grpchealth
from bidplane.node.process.confine import Bare

SICK = "sick"
WORDS = {
    "": b"\0\0\0\0\x02\x08\x01",  # SERVING
    SICK: b"\0\0\0\0\x02\x08\x02",
    "long" * 50: b"\0\0\0\0\x02\x08\x01",
    "unknown": b"\0\0\0\0\0",  # its zero is left out
}
GOOD = [(":status", "200"), ("content-type", "application/grpc")]


async def serve(reader, writer):
    """One client of a health server, for as long as it stays."""
    link = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    link.initiate_connection()
    asked = {}
    while True:
        writer.write(link.data_to_send())
        data = await reader.read(65536)
        if not data:
            writer.close()
            return
        for event in link.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                asked[event.stream_id] = b""
                path = dict(event.headers)[b":path"]
                assert path == b"/grpc.health.v1.Health/Check", path
            elif isinstance(event, h2.events.DataReceived):
                asked[event.stream_id] += event.data
            elif isinstance(event, h2.events.StreamEnded):
                answer(link, event.stream_id, asked.pop(event.stream_id))


def answer(link, stream, request):
    start = 7 if request[6:7] < b"\x80" else 8  # of the name: a length of one byte, or of two
    service = request[start:].decode()
    if service == "none":
        link.send_headers(stream, [*GOOD, ("grpc-status", "12")], end_stream=True)
    elif service == "refused":
        said = [("grpc-status", "7"), ("grpc-message", "not for you")]
        link.send_headers(stream, [*GOOD, *said], end_stream=True)
    elif service == "empty":
        link.send_headers(stream, GOOD)
        link.send_headers(stream, [("grpc-status", "0")], end_stream=True)
    elif service != "hangs":
        link.send_headers(stream, GOOD)
        link.send_data(stream, WORDS[service])
        link.send_headers(stream, [("grpc-status", "0")], end_stream=True)


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ("", ""),
        ("long" * 50, ""),
        (SICK, 'service unhealthy (responded with "NOT_SERVING")'),
        ("unknown", 'service unhealthy (responded with "UNKNOWN")'),
        ("none", "does not implement the grpc health protocol"),
        ("refused", "not for you"),
        ("empty", "it answered nothing"),
        ("hangs", "did not complete within 0.2s"),
    ],
)
def test_what_a_server_says_of_itself(service, words):
    async def story():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        timeout = 0.2 if service == "hangs" else 20
        said = await grpchealth.check("127.0.0.1", port, service, timeout)
        server.close()
        return said

    said = asyncio.run(story())
    assert words in said
    assert bool(words) == bool(said)


def test_nobody_listens():
    assert "failed to connect" in asyncio.run(grpchealth.check("127.0.0.1", 1, "", 5))


SERVER = """
import asyncio, os, sys
sys.path.insert(0, {tests!r})
from tests.node import test_grpc_probes as server
async def main():
    await (await asyncio.start_server(server.serve, os.environ["POD_IP"], 8080)).serve_forever()
asyncio.run(main())
"""


def test_a_pod_is_ready_when_its_server_says_so(box, pytestconfig):
    async def story(box):
        program = SERVER.format(tests=str(pytestconfig.rootpath))
        probe = {"grpc": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5}
        sick = {"grpc": {"port": 8080, "service": SICK}, "periodSeconds": 1, "timeoutSeconds": 5}
        command = [sys.executable, "-c", program]
        await box.create("good", *command, readinessProbe=probe)
        await box.create("bad", *command, readinessProbe=sick)
        await box.until_ready("good")
        assert "NOT_SERVING" in await box.until_event("bad", "Unhealthy")
        await box.until_ready("bad", ready=False)

    box(story, engine=Bare())
