"""gRPC probes: a server that says by the standard protocol how it is, and servers that do not."""

import asyncio
import sys

import pytest

from bidplane.node.process.probes import grpchealth
from bidplane.node.process.sandbox.confinement import Bare

from . import grpcserver
from .grpcserver import SICK, serve


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ("", ""),
        ("long" * 50, ""),
        (SICK, 'service unhealthy (responded with "NOT_SERVING")'),
        ("unknown", 'service unhealthy (responded with "UNKNOWN")'),
        ("none", "does not implement the grpc health protocol"),
        ("refused", "not for you"),
        ("empty", "the response is empty"),
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


def test_a_pod_is_ready_when_its_server_says_so(box):
    async def story(box):
        probe = {"grpc": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5}
        sick = {"grpc": {"port": 8080, "service": SICK}, "periodSeconds": 1, "timeoutSeconds": 5}
        command = [sys.executable, grpcserver.__file__]
        await box.create("good", *command, readinessProbe=probe)
        await box.create("bad", *command, readinessProbe=sick)
        await box.until_ready("good")

        async def told():  # and not only that nobody listened yet
            return "NOT_SERVING" in (await box.events("bad")).get("Unhealthy", "")

        await box.until(told)
        await box.until_ready("bad", ready=False)

    box(story, engine=Bare())
