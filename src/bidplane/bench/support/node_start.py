"""
The time a pod takes to start as a process, compared with a bare fork and exec of the command.

From the moment the API has accepted a pod that is bound to the node, to the moment the API shows it
Running: the watch, the volumes, the shim, the sandbox, the status on disk. Also the runtime's own
share: from the agent's order to the running process. One pod at a time.
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

from bidplane.api.kinds import POD
from bidplane.bench.report import Result, at_most, less, progress, say
from bidplane.http.server.serve import serve
from bidplane.kube.client import KubeClient
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.node.agent import NodeIdentity
from bidplane.node.inventory import NoDevices
from bidplane.node.process.container.images import Image, Images
from bidplane.node.process.network.addresses import choose
from bidplane.node.process.sandbox.confinement import (
    Bare,
    Bubblewrap,
    ContainerEngine,
    find_bubblewrap,
)
from bidplane.node.process.sandbox.limits import Cgroups
from bidplane.node.process.settings import ProcessSettings
from bidplane.plane import Planes
from bidplane.runtime.identity.certificates import ensure
from bidplane.runtime.identity.credentials import HOST_PLANE, OWNERS, Tokens
from bidplane.runtime.identity.credentials import Identity as Who
from bidplane.wiring.node import ProcessNode

PEER = "fork and exec"
_NODE = "bench-node"
_NAMESPACE = "default"
_COMMAND = ["/bin/sleep", "600"]
_AIM_MS = 50.0


def results(*, quick: bool) -> Iterator[Result]:
    """The results, with and without a sandbox."""
    count = 20 if quick else 100
    say(f"starting {count} pods as processes, one after the other")
    bare_ms = _spawn_ms(count)
    bubblewrap = find_bubblewrap()
    engines: list[ContainerEngine] = [Bubblewrap(bubblewrap)] if bubblewrap else []
    for engine in [*engines, Bare()]:
        how = "sandboxed" if engine.sandboxed else "no sandbox"
        with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as name:
            folder = Path(name)
            folder.chmod(0o711)  # pods have users of their own
            to_running, runtime_ms = asyncio.run(_measure(engine, count, folder))
        yield less(
            f"pod to Running, {how}, p50", "ms", statistics.median(to_running),
            peer=bare_ms, peer_name=PEER, aim=at_most(bare_ms + _AIM_MS),
        )  # fmt: skip
        yield less(f"pod to Running, {how}, p99", "ms", _p99(to_running))
        yield less(f"of that the runtime's, {how}, p50", "ms", statistics.median(runtime_ms))


def _p99(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]


def _spawn_ms(count: int) -> float:
    """The median time of a bare spawn, in milliseconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        pid = os.posix_spawn(_COMMAND[0], _COMMAND, {})
        times.append((time.perf_counter() - began) * 1000)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return statistics.median(times)


async def _measure(
    engine: ContainerEngine, count: int, folder: Path
) -> tuple[list[float], list[float]]:
    """Milliseconds until the API shows each pod Running, and from the order to the process."""
    clock, tokens = SystemClock(), Tokens(os.urandom(32))
    certificates = ensure(folder, hosts=["127.0.0.1"], now=clock.now())
    planes = Planes(folder / "planes", clock=clock, tokens=tokens, crds=lambda _: ())
    uid = await planes.create(HOST_PLANE)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{listener.getsockname()[1]}/planes/{HOST_PLANE}"
    expires = int(clock.now()) + 3600
    identity_of_bench = Who(
        plane=HOST_PLANE, uid=uid, user="bench", groups=(OWNERS,), expires=expires
    )
    client = HttpClient(url, token=tokens.issue(identity_of_bench), ca_file=str(certificates.ca))
    settings = ProcessSettings(
        node=_NODE,
        state=folder / "state",
        engine=engine,
        network=choose("loopback"),
        cgroups=Cgroups(_NODE),
        images=Images(images={"tools": Image()}),
        trusted=["*"],
    )
    identity = NodeIdentity(name=_NODE, address="127.0.0.1", port=1)
    node = ProcessNode(client, settings, identity, NoDevices(), tokens=client, clock=clock)
    tasks = [
        asyncio.create_task(serve(planes, listener, certificates)),
        asyncio.create_task(node.run()),
    ]
    try:
        await node.agent.registered.wait()
        return await _start_all(client, node, settings, count)
    finally:
        await _stop(client, node, tasks)
        settings.cgroups.close()
        await planes.close()


async def _start_all(
    client: KubeClient, node: ProcessNode, settings: ProcessSettings, count: int
) -> tuple[list[float], list[float]]:
    """Start the pods one after the other; return both times of each."""
    to_running, runtime_ms = [], []
    for number in progress("pods", range(count)):
        pod = {
            "metadata": {"name": f"p{number}"},
            "spec": {
                "nodeName": _NODE,
                "automountServiceAccountToken": False,
                "containers": [{"name": "main", "image": "tools", "command": _COMMAND}],
            },
        }
        created = await client.create(POD, pod, _NAMESPACE)
        began = time.perf_counter()
        async for event in client.watch(
            POD,
            _NAMESPACE,
            resource_version=created["metadata"]["resourceVersion"],
            fields=f"metadata.name=p{number}",
        ):
            if (event.object.get("status") or {}).get("phase") == "Running":
                break
        to_running.append((time.perf_counter() - began) * 1000)
        runtime_ms.append(_runtime_ms(node, created["metadata"]["uid"]))
        await client.delete(POD, f"p{number}", _NAMESPACE, grace_seconds=0)
    return to_running, runtime_ms


def _runtime_ms(node: ProcessNode, uid: str) -> float:
    """The milliseconds from the agent's order to the process."""
    run = node.runtime.run_of(uid, "main")
    assert run is not None
    assert run.started is not None
    return (run.started - run.ordered) * 1000


async def _stop(client: HttpClient, node: ProcessNode, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the pods to end, and stop the tasks."""
    for _ in range(500):
        if not node.runtime.pods():
            break
        await asyncio.sleep(0.01)
    for task in reversed(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()
