"""
The memory of one simulated node in KiB: `python -m bidplane.bench.support.simulated_nodes 10000`.

The nodes are registered with an API that stores nothing, so that only the nodes' own memory is
counted.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import cast

from bidplane.api.kinds import Kind, Object
from bidplane.kube.client import KubeClient, Listing
from bidplane.machinery.clock import SystemClock
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.simulated import SimulatedNodes


class _NullClient:
    """A client that accepts every write and stores nothing."""

    async def create(self, kind: Kind, obj: Object, namespace: str | None = None) -> Object:
        return obj

    async def patch(self, kind: Kind, name: str, patch: Object, **_: object) -> Object:
        return {}

    async def list(self, kind: Kind, **_: object) -> Listing:
        return Listing(items=[], resource_version="1")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(count: int) -> None:
    before = resident_bytes()
    fleet = Fleet(
        nodes=[
            NodeDeclaration(name=f"n{number:05}", product="H100", gpus=8) for number in range(count)
        ]
    )
    nodes = SimulatedNodes(
        cast(KubeClient, _NullClient()), fleet, clock=SystemClock(), address="127.0.0.1", port=1
    )
    asyncio.run(nodes.register())
    gc.collect()
    print((resident_bytes() - before) / 1024 / count)


if __name__ == "__main__":
    main(int(sys.argv[1]))
