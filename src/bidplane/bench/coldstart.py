"""
The time of a cold start whose pod starts at once, on an installation of its own.

`bidplane up` with this machine as its only node, and services that sleep: a request wakes one after
the other. Measured are the times from the request's first byte to the first process
of the pod, and to the answer; once with a float, once without one. The pod says itself when it
began, and when it listened: both clocks are the machine's.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bidplane.api.agent import AgentSpec
from bidplane.api.kinds import AGENT, DEPLOYMENT, ENDPOINT, SERVICE, Kind, Object
from bidplane.api.manifests import manifest
from bidplane.bench.report import Result, at_most, less, say
from bidplane.http.client.caller import HttpCaller, trust
from bidplane.kube.client import KubeClient
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.node.process.sandbox.confinement import find_bubblewrap
from bidplane.runtime.installation import Installation
from bidplane.wiring.hostclient import host_client

_NAME, _SPACE = "cold", "default"
_GPUS = 24  # so many that 5 % of them are one GPU
_AIM_MS = 150.0
_TRIES_SECONDS = 60.0
_REST_SECONDS = 1.0  # until nothing is under way that made the agent and its service
# `date` runs first, so that the interpreter's own start does not count.
_SERVER = """
import os, socket, time
listener = socket.create_server((os.environ["POD_IP"], 8080))
body = (os.environ["BEGAN"] + " " + str(time.time())).encode()
while True:
    connection, _ = listener.accept()
    if connection.recv(65536):
        head = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n"
        connection.sendall(head % len(body) + body)
    connection.close()
"""


class MeasuredStart(msgspec.Struct, frozen=True):
    """The times of one cold start, in ms since the request was sent."""

    process: float
    listening: float
    answered: float


def results(*, quick: bool) -> Iterator[Result]:
    """The results with and without a float; none where no pod can be run."""
    if find_bubblewrap() is None:
        return
    for name, percent in (("with float", 5), ("without float", 0)):
        say(f"activator: cold starts {name}")
        starts = asyncio.run(_measure(4 if quick else 20, percent))
        yield less(
            f"request to process start, {name}, p50",
            "ms",
            statistics.median(start.process for start in starts),
            aim=at_most(_AIM_MS) if percent else None,
        )
        yield less(
            f"request to answer, {name}, p50",
            "ms",
            statistics.median(start.answered for start in starts),
        )
        yield less(
            f"of that behind the pod's own start, {name}, p50",
            "ms",
            statistics.median(start.answered - start.listening for start in starts),
        )


async def _measure(count: int, float_percent: int) -> list[MeasuredStart]:
    """Each by an agent of its own: the float sells one owner a single GPU in 60 s."""
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as name:
        async with _installed(Path(name), float_percent) as where:
            port = urlsplit(where.address().activator_url).port or 0
            starts = []
            for number in range(count + 1):
                client = await _create_agent(where, f"a{number}")
                for kind, document in _manifests():
                    await client.create(kind, document, _SPACE)
                await _wait_asleep(client)
                await asyncio.sleep(_REST_SECONDS)
                starts.append(await _cold_start(port, f"{_NAME}.a{number}.localhost"))
                await client.delete(ENDPOINT, _NAME, _SPACE)
                await client.delete(DEPLOYMENT, _NAME, _SPACE)
                await client.close()
            return starts[1:]  # the first one imports what later ones share


@asynccontextmanager
async def _installed(folder: Path, float_percent: int) -> AsyncIterator[Installation]:
    """Run an installation, of which one node is this machine."""
    node = {"name": "box", "product": "H100", "gpus": _GPUS}
    pool = {"product": "H100", "instantFloatPercent": float_percent}
    fleet, images = folder / "fleet.yaml", folder / "images.yaml"
    fleet.write_bytes(msgspec.yaml.encode({"nodes": [node], "pools": [pool]}))
    images.write_text('images: {"tools": {}}')
    where = Installation(folder / "data")
    arguments = ["up", "--port", "0", "--data", str(where.folder), "--fleet", str(fleet)]
    process = await asyncio.to_thread(
        subprocess.Popen,
        [
            *(sys.executable, "-m", "bidplane", *arguments),
            *("--runtime", "process", "--images", str(images)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        while "Ctrl-C stops it" not in (line := await asyncio.to_thread(process.stdout.readline)):
            if not line:
                raise RuntimeError("the installation did not start")
        yield where
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)
        if process.stdout is not None:
            process.stdout.close()


async def _create_agent(where: Installation, name: str) -> HttpClient:
    """Create an agent, and return a client of its plane."""
    host = host_client(where, user="owner", clock=SystemClock())
    spec = AgentSpec(owner=name, refill="1000000", max_price="5.00")
    await host.create(AGENT, manifest(AGENT, name, spec))
    await host.close()
    token = where.owner_token(user="owner", now=SystemClock().now())
    async with HttpCaller(
        where.address().url, trust=trust(ca_file=where.ca_file), seconds=60
    ) as http:
        while True:
            answer = await http.call(
                "POST",
                f"/bidplane/v1/agents/{name}/kubeconfig",
                headers={"Authorization": f"Bearer {token}"},
            )
            if answer.code == 200:
                break
            await asyncio.sleep(0.05)
    config = msgspec.yaml.decode(answer.body)
    return HttpClient(
        config["clusters"][0]["cluster"]["server"],
        token=config["users"][0]["user"]["token"],
        ca_file=where.ca_file,
    )


def _manifests() -> Iterator[tuple[Kind, Object]]:
    metadata, selector = {"name": _NAME}, {"app": _NAME}
    container = {
        "name": "main",
        "image": "tools",
        "command": ["/bin/sh", "-c", 'BEGAN=$(date +%s.%N) exec python3 -Sc "$SERVER"'],
        "env": [{"name": "SERVER", "value": _SERVER}],
        "ports": [{"containerPort": 8080}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    template = {"metadata": {"labels": selector}, "spec": pod}
    deployment = {"replicas": 0, "selector": {"matchLabels": selector}, "template": template}
    yield DEPLOYMENT, {"metadata": metadata, "spec": deployment}
    ports = [{"port": 80, "targetPort": 8080}]
    yield SERVICE, {"metadata": metadata, "spec": {"selector": selector, "ports": ports}}
    target = {"deployment": _NAME, "service": _NAME}
    spec = {"target": target, "idleSeconds": 60}
    yield ENDPOINT, {"metadata": metadata, "spec": spec}


async def _wait_asleep(client: KubeClient) -> None:
    """Wait until the service is known, and sleeps."""
    async with asyncio.timeout(_TRIES_SECONDS):
        while True:
            status = (await client.get(ENDPOINT, _NAME, _SPACE)).get("status") or {}
            if status.get("phase") == "Asleep":
                return
            await asyncio.sleep(0.05)


async def _cold_start(port: int, host: str) -> MeasuredStart:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = time.time()
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(_TRIES_SECONDS):
        answer = await reader.read()
    answered = time.time()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the service did not wake: {answer.decode(errors='replace')}")
    began, listening = map(float, body.split())
    return MeasuredStart((began - sent) * 1e3, (listening - sent) * 1e3, (answered - sent) * 1e3)
