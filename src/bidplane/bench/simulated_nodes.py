"""
KiB that one simulated node costs: `python -m bidplane.bench.simulated_nodes 10000`.

The nodes are registered with an API that keeps nothing, so that only the nodes' own memory is
counted.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import Any, cast

from bidplane.kube.client import Client, Listing
from bidplane.machinery.clock import SystemClock
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.simulated import SimulatedNodes


class _Nowhere:
    """An API that takes everything and has nothing."""

    async def create(self, kind: Any, obj: Any, namespace: Any = None) -> Any:
        return obj

    async def patch(self, kind: Any, name: str, patch: Any, *rest: Any, **more: Any) -> Any:
        return {}

    async def list(self, kind: Any, *rest: Any, **more: Any) -> Any:
        return Listing(items=[], resource_version="1")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(count: int) -> None:
    before = resident_bytes()
    fleet = Fleet(
        nodes=[NodeDeclaration(name=f"n{at:05}", product="H100", gpus=8) for at in range(count)]
    )
    nodes = SimulatedNodes(
        cast(Client, _Nowhere()), fleet, clock=SystemClock(), address="127.0.0.1", port=1
    )
    asyncio.run(nodes.register())
    gc.collect()
    print((resident_bytes() - before) / 1024 / count)


if __name__ == "__main__":
    main(int(sys.argv[1]))
