"""
The way of one pod, from `create` to Running: source files executed, and writes to the API.

    python benchmarks/pod_path.py

The whole installation runs in the simulator, with an agent whose plane is ready. Counted are the
files of bidplane of which a function runs, and the writes of server, exchange and node. Rounds,
heartbeats and informers run meanwhile, and count, too.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import bidplane
from bidplane.api import labels
from bidplane.api.kinds import AGENT, POD
from bidplane.errors import NotFound
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import World

SOURCE = str(Path(bidplane.__file__).parent)
WITHIN_SECONDS = 120.0


class Files:
    """The files of which a function was called."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    def __enter__(self) -> Files:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    def names(self) -> set[str]:
        paths = {code.co_filename for code in self._codes}
        return {path.removeprefix(SOURCE + "/") for path in paths if path.startswith(SOURCE)}


async def measure(folder: Path) -> tuple[set[str], Counter[str]]:
    """Return the files executed by one pod, and the writes by part."""
    nodes = [NodeDeclaration(name="node-1", product="H100", gpus=8)]
    pools = [PoolDeclaration(product="H100", floor_price="0.20")]
    world = World(folder, Fleet(nodes=nodes, pools=pools))
    await world.start_all()
    host, plane = world.client(), world.client("trainer")
    spec = {"owner": "somebody", "refill": "100", "carryOver": "1000", "maxPrice": "1.00"}
    agent = {"apiVersion": AGENT.api_version, "kind": "Agent", "metadata": {"name": "trainer"}}
    await host.create(AGENT, {**agent, "spec": spec})

    async def is_ready() -> bool:
        agent = await host.get(AGENT, "trainer")
        finalizers = agent["metadata"].get("finalizers") or ()
        phase = (agent.get("status") or {}).get("phase")
        return phase == "Ready" and labels.WALLET_FINALIZER in finalizers

    async def is_running() -> bool:
        try:
            pod = await plane.get(POD, "train", "default")
        except NotFound:
            return False
        return (pod.get("status") or {}).get("phase") == "Running"

    await world.until(is_ready, within=WITHIN_SECONDS)
    await asyncio.sleep(5)
    before = Counter(world.steps)
    with Files() as files:
        await plane.create(POD, _pod(), "default")
        await world.until(is_running, within=WITHIN_SECONDS)
    steps = Counter(world.steps) - before
    await world.stop()
    # A step is counted before and after each write.
    return files.names(), Counter({str(part): count // 2 for part, count in steps.items()})


def _pod() -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "annotations": {labels.SIMULATED_SECONDS: "600"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files, writes = run(measure(Path(folder)))
    by_package = Counter(name.partition("/")[0] for name in files)
    print(f"files executed: {len(files)}")
    for package, count in by_package.most_common():
        print(f"  {package:12} {count}")
    parts = ", ".join(f"{part} {count}" for part, count in writes.items())
    print(f"writes: {sum(writes.values()) + 1}, the pod's own included ({parts})")


if __name__ == "__main__":
    main()
