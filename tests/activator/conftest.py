"""An activator with its clients and pods; a test writes what the endpoint controller would."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bidplane.activator.activator import Activator
from bidplane.activator.applications import Applications
from bidplane.activator.endpoints import LiveEndpoint
from bidplane.activator.gpus import PodGpus
from bidplane.api import labels
from bidplane.api.kinds import ENDPOINT, NAMESPACE
from bidplane.drivers.embedded import crds_for
from bidplane.http.proxy.pool import BackendPool
from bidplane.http.proxy.server import ProxyServer, Site
from bidplane.http.server.accepting import Bounds
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.telemetry.model import Counters

SPACE = "agent-alice"
SECONDS = 30
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class ShiftedClock:
    """The time of day, which a test moves forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Service:
    """An activator's clients, host and pod."""

    def __init__(self) -> None:
        self.clock = ShiftedClock()
        self.answers: Callable[[bytes], bytes] = lambda request: OK
        self.counters: Callable[[], list[Counters]] = list
        self.requests: list[bytes] = []
        self._pod: asyncio.Server | None = None
        self.port = 0

    async def start(self, folder: Path) -> None:
        self.planes = Planes(
            folder, clock=self.clock, tokens=Tokens(b"t" * 32), crds=crds_for, durable=False
        )
        await self.planes.create(HOST_PLANE)
        self.host = self.planes.client(HOST_PLANE)
        await self.host.create(
            NAMESPACE, {"metadata": {"name": SPACE}, "apiVersion": "v1", "kind": "Namespace"}
        )
        self.pool = BackendPool()
        applications = Applications(counters=PodGpus(self.host, self))  # type: ignore[arg-type]
        self.activator = Activator(
            self.host, self.pool, clock=self.clock, applications=applications
        )
        self._task = asyncio.create_task(self.activator.run())
        bounds = Bounds(total=5000, per_address=5000, per_loopback_address=5000)
        self.server = ProxyServer(Site(self.activator.dispatch, bounds=bounds), self.pool)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = listener.getsockname()
        await self.server.start(listener)

    async def read(self, urls: Collection[str], *, only: Sequence[str] = ()) -> list[Counters]:
        """The counters of the nodes' GPUs, as their pages tell them."""
        return self.counters() if urls else []

    async def close_activator(self) -> None:
        await self.server.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def close(self) -> None:
        await self.close_activator()
        await self.stop_pod()
        await self.planes.close()

    # The endpoint controller and the node.

    async def endpoint(self, name: str = "llm", *, phase: str = "Asleep", **spec: Any) -> None:
        metadata = {
            "name": name,
            "labels": {labels.AGENT: "alice"},
            "annotations": {labels.PLANE_NAME: name, labels.PLANE_NAMESPACE: "default"},
        }
        target = {"deployment": name, "service": name}
        manifest = {"metadata": metadata, "spec": {"target": target, **spec}}
        await self.host.create(ENDPOINT, manifest, SPACE)
        host = f"{name}.alice.localhost"
        await self.says(name, phase=phase, hosts=[host], host=host)

    async def says(self, name: str = "llm", **status: Any) -> None:
        await self.host.patch(ENDPOINT, name, {"status": status}, SPACE, subresource="status")
        await asyncio.sleep(0.02)

    async def status(self, name: str = "llm") -> Mapping[str, Any]:
        status: Mapping[str, Any] = (await self.host.get(ENDPOINT, name, SPACE))["status"]
        return status

    async def demanded(self, *, awake: bool, name: str = "llm") -> int:
        """Wait for a demand, and return its number."""
        while True:
            demand = (await self.status(name)).get("demand") or {}
            if demand.get("awake", False) == awake:
                return int(demand["number"])
            await asyncio.sleep(0.005)

    async def start_pod(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    self.requests.append(head)
                    sent = header(head, "Content-Length")
                    await reader.readexactly(int(sent or 0))
                    answer = self.answers(head)
                    writer.write(answer)
                    await writer.drain()
            writer.close()

        self._pod = await asyncio.start_server(serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._pod.sockets[0].getsockname()[1]

    async def stop_pod(self) -> None:
        if self._pod is not None:
            self._pod.close()
            self._pod = None

    async def ready(self, number: int, name: str = "llm", **status: Any) -> None:
        """As the controller says it once a pod runs."""
        backend = {"pod": name, "address": "127.0.0.1", "port": self.port, "ready": True}
        await self.says(name, phase="Ready", answers=number, backends=[backend], **status)

    async def awake(self, name: str = "llm", **spec: Any) -> None:
        """An Endpoint whose pod answers."""
        if self._pod is None:
            await self.start_pod()
        await self.endpoint(name, phase="Ready", **spec)
        await self.ready(await self.demanded(awake=True, name=name), name)
        while not self.live(name).is_open:
            await asyncio.sleep(0.005)

    def live(self, name: str = "llm") -> LiveEndpoint:
        return self.activator._live[SPACE, name]

    # A client.

    async def open(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.url, limit=1 << 20)
        writer.write(request)
        return reader, writer

    async def ask(self, request: bytes) -> bytes:
        """Send a request that asks to close, and return the whole answer."""
        reader, writer = await self.open(request)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
        writer.close()
        return answer

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        self.clock.ahead += seconds
        self.activator.tick()

    async def held(self, count: int, name: str = "llm") -> None:
        while len(self.live(name).holds) != count:
            await asyncio.sleep(0.005)


def get(path: str = "/", *headers: str, method: str = "GET", host: str = "llm") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}.alice.localhost", "Connection: close"]
    return "\r\n".join([*lines, *headers, "", ""]).encode()


def header(answer: bytes, name: str) -> str | None:
    for line in answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.lower() == name.lower():
            return value.strip()
    return None


Story = Callable[[Service], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    """Play a story with a service, within a bound of time."""

    def play_story(story: Story) -> None:
        async def whole() -> None:
            service = Service()
            await service.start(tmp_path)
            try:
                async with asyncio.timeout(SECONDS):
                    await story(service)
            finally:
                await service.close()

        uvloop.run(whole())

    return play_story
