"""
How long a pod takes to start as a process, beside a bare fork and exec of the same command.

From the moment the API has accepted a pod that is bound to the node, to the moment the API shows
it Running: the watch, the volumes, the shim, the sandbox, the status on disk. Also what of that
is the runtime's own: from the agent's order to the process that runs. One pod at a time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bidplane.api.kinds import POD
from bidplane.bench.report import Result, at_most, less, progress, say
from bidplane.kube.client import Client
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.node.agent import Identity
from bidplane.node.inventory import NoDevices
from bidplane.node.process.addresses import choose
from bidplane.node.process.confine import Bare, Bubblewrap, Engine, find_bubblewrap
from bidplane.node.process.images import Image, Images
from bidplane.node.process.limits import Cgroups
from bidplane.node.process.settings import Settings
from bidplane.plane import Planes
from bidplane.runtime.certificates import ensure
from bidplane.runtime.credentials import HOST_PLANE, OWNERS, Tokens
from bidplane.runtime.credentials import Identity as Who
from bidplane.runtime.serve import serve
from bidplane.wiring.node import ProcessNode

PEER = "fork and exec"
_NODE = "bench-node"
_SPACE = "default"
_COMMAND = ["/bin/sleep", "600"]
_AIM_MS = 50.0


def results(*, quick: bool) -> Iterator[Result]:
    count = 20 if quick else 100
    say(f"starting {count} pods as processes, one after the other")
    bare_ms = _bare(count)
    bubblewrap = find_bubblewrap()
    engines: list[Engine] = [Bubblewrap(bubblewrap)] if bubblewrap else []
    for engine in [*engines, Bare()]:
        how = "sandboxed" if engine.sandboxed else "no sandbox"
        with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as name:
            folder = Path(name)
            folder.chmod(0o711)  # pods have users of their own
            to_running, own = asyncio.run(_measure(engine, count, folder))
        yield less(
            f"pod to Running, {how}, p50", "ms", statistics.median(to_running),
            peer=bare_ms, peer_name=PEER, aim=at_most(bare_ms + _AIM_MS),
        )  # fmt: skip
        yield less(f"pod to Running, {how}, p99", "ms", _p99(to_running))
        yield less(f"of that the runtime's, {how}, p50", "ms", statistics.median(own))


def _p99(found: list[float]) -> float:
    return sorted(found)[min(len(found) - 1, int(len(found) * 0.99))]


def _bare(count: int) -> float:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        pid = os.posix_spawn(_COMMAND[0], _COMMAND, {})
        found.append((time.perf_counter() - began) * 1000)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return statistics.median(found)


async def _measure(engine: Engine, count: int, folder: Path) -> tuple[list[float], list[float]]:
    """Milliseconds: to Running as the API shows it; from the order to the process."""
    clock, tokens = SystemClock(), Tokens(os.urandom(32))
    certificates = ensure(folder, hosts=["127.0.0.1"], now=clock.now())
    planes = Planes(folder / "planes", clock=clock, tokens=tokens, crds=lambda _: ())
    uid = await planes.create(HOST_PLANE)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{listener.getsockname()[1]}/planes/{HOST_PLANE}"
    until = int(clock.now()) + 3600
    who = Who(plane=HOST_PLANE, uid=uid, user="bench", groups=(OWNERS,), expires=until)
    client = HttpClient(url, token=tokens.issue(who), ca_file=str(certificates.ca))
    settings = Settings(
        node=_NODE,
        state=folder / "state",
        engine=engine,
        network=choose("loopback"),
        cgroups=Cgroups(_NODE),
        images=Images(images={"tools": Image()}),
        trusted=["*"],
    )
    identity = Identity(name=_NODE, address="127.0.0.1", port=1)
    node = ProcessNode(client, settings, identity, NoDevices(), tokens=client, clock=clock)
    tasks = [
        asyncio.create_task(serve(planes, listener, certificates)),
        asyncio.create_task(node.run()),
    ]
    try:
        await node.agent.registered.wait()
        return await _start_all(client, node, settings, count)
    finally:
        await _end(client, node, tasks)
        settings.cgroups.close()
        await planes.close()


async def _start_all(
    client: Client, node: ProcessNode, settings: Settings, count: int
) -> tuple[list[float], list[float]]:
    to_running, own = [], []
    for at in progress("pods", range(count)):
        pod: dict[str, Any] = {
            "metadata": {"name": f"p{at}"},
            "spec": {
                "nodeName": _NODE,
                "automountServiceAccountToken": False,
                "containers": [{"name": "main", "image": "tools", "command": _COMMAND}],
            },
        }
        created = await client.create(POD, pod, _SPACE)
        began = time.perf_counter()
        async for event in client.watch(
            POD,
            _SPACE,
            resource_version=created["metadata"]["resourceVersion"],
            fields=f"metadata.name=p{at}",
        ):
            if (event.object.get("status") or {}).get("phase") == "Running":
                break
        to_running.append((time.perf_counter() - began) * 1000)
        own.append(_own_ms(node, created["metadata"]["uid"]))
        await client.delete(POD, f"p{at}", _SPACE, grace_seconds=0)
    return to_running, own


def _own_ms(node: ProcessNode, uid: str) -> float:
    run = node.runtime.run_of(uid, "main")
    assert run is not None
    assert run.started is not None
    return (run.started - run.ordered) * 1000


async def _end(client: HttpClient, node: ProcessNode, tasks: list[asyncio.Task[None]]) -> None:
    for _ in range(500):
        if not node.runtime.pods():
            break
        await asyncio.sleep(0.01)
    for task in reversed(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()
