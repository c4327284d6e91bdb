"""
The activator as a process of its own, for its benchmark: real Endpoints on a real host plane.

    python -m bidplane.bench.support.activator_process DESCRIPTOR BACKEND_PORT OTHERS ASLEEP [NOTES]

Endpoint `warm` has its pod at BACKEND_PORT; `asleep-N` have none; OTHERS more have routes. WAKING
Endpoints `wakes-N` are ready as soon as they are asked to wake; for each the time at which that is
written to the host is noted in the file NOTES.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bidplane.activator.activator import Activator
from bidplane.api import labels
from bidplane.api.endpoint import EndpointPhase
from bidplane.api.kinds import ENDPOINT, NAMESPACE, Object
from bidplane.drivers.embedded import crds_for
from bidplane.http.proxy.pool import BackendPool
from bidplane.http.proxy.server import ProxyServer, Site
from bidplane.http.server.accepting import Bounds
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.runtime.interpreter import tune

DOMAIN = "bench.localhost"
WAKING = 100
_SPACE = "agent-bench"
_MOST = 1_000_000


async def _create(host: KubeClient, name: str, status: Object) -> None:
    spec = {"target": {"deployment": name, "service": name}, "maxHeld": 100_000}
    metadata = {"name": name, "labels": {labels.AGENT: "bench"}}
    await host.create(ENDPOINT, {"metadata": metadata, "spec": spec}, _SPACE)
    hosts = [f"{name}.{DOMAIN}"]
    await host.patch(
        ENDPOINT, name, {"status": {"hosts": hosts, **status}}, _SPACE, subresource="status"
    )


async def _wake(host: KubeClient, backend: Object, since: str, notes: Path) -> None:
    """Say that a pod is ready, as the controller does, once a wake is demanded."""
    async for event in host.watch(ENDPOINT, _SPACE, resource_version=since):
        name = event.object["metadata"].get("name", "")
        status = event.object.get("status") or {}
        if not name.startswith("wakes-") or not status["demand"].get("awake"):
            continue
        if status["phase"] == EndpointPhase.READY:
            continue
        ready = {"phase": EndpointPhase.READY, "answers": status["demand"]["number"]}
        with notes.open("a") as file:
            file.write(f"{name} {time.monotonic()}\n")
        await host.patch(
            ENDPOINT,
            name,
            {"status": {**ready, "backends": [backend]}},
            _SPACE,
            subresource="status",
        )


async def _serve(
    listener: socket.socket, port: int, other_count: int, asleep: int, notes: Path | None
) -> None:
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder:
        planes = Planes(
            Path(folder), clock=clock, tokens=Tokens(b"t" * 32), crds=crds_for, durable=False
        )
        await planes.create(HOST_PLANE)
        host = planes.client(HOST_PLANE)
        await host.create(NAMESPACE, {"metadata": {"name": _SPACE}})
        backend = {"pod": "warm", "address": "127.0.0.1", "port": port, "ready": True}
        awake = {"phase": EndpointPhase.READY, "answers": 1}
        demand = {"number": 1, "awake": True}
        await _create(host, "warm", {**awake, "demand": demand, "backends": [backend]})
        sleeping = {"phase": EndpointPhase.ASLEEP, "answers": 1, "demand": {"number": 1}}
        for number in range(asleep):
            await _create(host, f"asleep-{number}", sleeping)
        for number in range(other_count):
            await _create(host, f"other-{number}", sleeping)
        for number in range(WAKING if notes else 0):
            await _create(host, f"wakes-{number}", sleeping)
        since = (await host.list(ENDPOINT, _SPACE)).resource_version
        pool = BackendPool()
        activator = Activator(host, pool, clock=clock)
        bounds = Bounds(total=_MOST, per_address=_MOST, per_loopback_address=_MOST)
        server = ProxyServer(Site(activator.dispatch, bounds=bounds), pool)
        await server.start(listener)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(activator.run())
            if notes is not None:
                tasks.create_task(_wake(host, backend, since, notes))


def main() -> None:
    descriptor, port, other_count, asleep = map(int, sys.argv[1:5])
    notes = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    tune()
    uvloop.run(_serve(socket.socket(fileno=descriptor), port, other_count, asleep, notes))


if __name__ == "__main__":
    main()
