"""
Nodes of GPUs, as a queue sees them.

A job that fits on one node gets one, the node with the least free GPUs that suffice. A larger one
gets whole free nodes, and its remainder goes to the node with the most free GPUs. Where nodes have
GPUs of several kinds, a job uses one kind: the fastest for it with enough free GPUs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Seats = dict[int, tuple[int, ...]]  # by node: its GPUs


class SimulatedCluster:
    """The free GPUs of each node, and the nodes that are down."""

    def __init__(self, sizes: Sequence[int], kinds: Sequence[str] = ()) -> None:
        self.sizes = tuple(sizes)
        self.kinds = tuple(kinds) or ("gpu",) * len(self.sizes)  # of each node's GPUs
        self.free: list[tuple[int, ...]] = [tuple(range(size)) for size in sizes]
        self.down: set[int] = set()

    def __repr__(self) -> str:
        return f"<Cluster {self.available} of {sum(self.sizes)} free>"

    def copy(self) -> SimulatedCluster:
        duplicate = SimulatedCluster(())
        duplicate.sizes, duplicate.kinds = self.sizes, self.kinds
        duplicate.free, duplicate.down = list(self.free), self.down
        return duplicate

    @property
    def up(self) -> int:
        """The number of GPUs on nodes that are not down."""
        return sum(size for node, size in enumerate(self.sizes) if node not in self.down)

    @property
    def available(self) -> int:
        return sum(len(self.free[node]) for node in range(len(self.sizes)) if node not in self.down)

    def find(self, gpus: int, speeds: Mapping[str, float] | None = None) -> Seats | None:
        """
        The GPUs that a job of that size would get now, or None; `speeds`: how fast each kind is
        for it.
        """
        if not speeds:
            return self._find(gpus, "")
        for kind in sorted(speeds, key=lambda kind: -speeds[kind]):
            seats = self._find(gpus, kind)
            if seats is not None:
                return seats
        return None

    def _find(self, gpus: int, kind: str) -> Seats | None:
        """The GPUs of one kind, or of any (""), for a job of that size."""
        candidates = [
            (len(free), node)
            for node, free in enumerate(self.free)
            if free and node not in self.down and kind in ("", self.kinds[node])
        ]
        fitting = [(free_gpus, node) for free_gpus, node in candidates if free_gpus >= gpus]
        if fitting:
            node = min(fitting)[1]
            return {node: self.free[node][:gpus]}
        largest = max(
            (n for n, k in zip(self.sizes, self.kinds, strict=True) if kind in ("", k)), default=0
        )
        if gpus <= largest:
            return None
        seats: Seats = {}
        for free_gpus, node in sorted(candidates, key=lambda item: (-item[0], item[1])):
            wanted_gpus = min(gpus, largest)
            if free_gpus < wanted_gpus:
                return None
            seats[node] = self.free[node][:wanted_gpus]
            gpus -= wanted_gpus
            if gpus == 0:
                return seats
        return None

    def take(self, seats: Seats) -> None:
        """Allocate these GPUs."""
        for node, devices in seats.items():
            allocated = set(devices)
            if node in self.down or not allocated.issubset(self.free[node]):
                raise RuntimeError(f"node {node} does not have {devices} free")
            self.free[node] = tuple(d for d in self.free[node] if d not in allocated)

    def give(self, seats: Seats) -> None:
        """Free these GPUs."""
        for node, devices in seats.items():
            if not set(devices).isdisjoint(self.free[node]):
                raise RuntimeError(f"node {node}: {devices} were free already")
            self.free[node] = tuple(sorted((*self.free[node], *devices)))


class Failure(NamedTuple):
    """A node's downtime."""

    node: int
    at: int
    until: int


def failures(
    sizes: Sequence[int], *, mean_hours: float, repair_seconds: int, span: int, seed: int
) -> list[Failure]:
    """Draw failures: each node fails at random, on average once in `mean_hours` of running."""
    generator = random.Random(seed)
    drawn = []
    for node in range(len(sizes)):
        now = 0.0
        while True:
            now += generator.expovariate(1.0 / (mean_hours * 3600))
            if now >= span:
                break
            drawn.append(Failure(node, int(now), int(now) + repair_seconds))
            now += repair_seconds
    return sorted(drawn, key=lambda failure: (failure.at, failure.node))
