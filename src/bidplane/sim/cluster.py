"""
Nodes of GPUs, as a queue sees them.

Up to a node's size a job stays on one node, the tightest that has room. A larger one gets
whole free nodes, and what remains of it goes to the node with the most room. Where nodes
have GPUs of several kinds, a job is on one kind: the fastest for it that has room.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Seats = dict[int, tuple[int, ...]]  # by node: its GPUs


class Cluster:
    def __init__(self, sizes: Sequence[int], kinds: Sequence[str] = ()) -> None:
        self.sizes = tuple(sizes)
        self.kinds = tuple(kinds) or ("gpu",) * len(self.sizes)  # of each node's GPUs
        self.free: list[tuple[int, ...]] = [tuple(range(size)) for size in sizes]
        self.down: set[int] = set()

    def __repr__(self) -> str:
        return f"<Cluster {self.available} of {sum(self.sizes)} free>"

    def copy(self) -> Cluster:
        other = Cluster(())
        other.sizes, other.kinds = self.sizes, self.kinds
        other.free, other.down = list(self.free), self.down
        return other

    @property
    def up(self) -> int:
        """GPUs of nodes that work."""
        return sum(size for node, size in enumerate(self.sizes) if node not in self.down)

    @property
    def available(self) -> int:
        return sum(len(self.free[node]) for node in range(len(self.sizes)) if node not in self.down)

    def find(self, gpus: int, speeds: Mapping[str, float] | None = None) -> Seats | None:
        """Where a job of so many GPUs would go now; `speeds`: how fast each kind is for it."""
        if not speeds:
            return self._find(gpus, "")
        for kind in sorted(speeds, key=lambda kind: -speeds[kind]):
            seats = self._find(gpus, kind)
            if seats is not None:
                return seats
        return None

    def _find(self, gpus: int, kind: str) -> Seats | None:
        room = [
            (len(free), node)
            for node, free in enumerate(self.free)
            if free and node not in self.down and kind in ("", self.kinds[node])
        ]
        within = [(have, node) for have, node in room if have >= gpus]
        if within:
            node = min(within)[1]
            return {node: self.free[node][:gpus]}
        largest = max(
            (n for n, k in zip(self.sizes, self.kinds, strict=True) if kind in ("", k)), default=0
        )
        if gpus <= largest:
            return None
        seats: Seats = {}
        for have, node in sorted(room, key=lambda item: (-item[0], item[1])):
            need = min(gpus, largest)
            if have < need:
                return None
            seats[node] = self.free[node][:need]
            gpus -= need
            if gpus == 0:
                return seats
        return None

    def take(self, seats: Seats) -> None:
        for node, devices in seats.items():
            taken = set(devices)
            if node in self.down or not taken.issubset(self.free[node]):
                raise RuntimeError(f"node {node} does not have {devices} free")
            self.free[node] = tuple(d for d in self.free[node] if d not in taken)

    def give(self, seats: Seats) -> None:
        for node, devices in seats.items():
            if not set(devices).isdisjoint(self.free[node]):
                raise RuntimeError(f"node {node}: {devices} were free already")
            self.free[node] = tuple(sorted((*self.free[node], *devices)))


class Failure(NamedTuple):
    node: int
    at: int
    until: int


def failures(
    sizes: Sequence[int], *, mean_hours: float, repair_seconds: int, span: int, seed: int
) -> list[Failure]:
    """Each node fails at random, on average once in `mean_hours` of running."""
    dice = random.Random(seed)
    found = []
    for node in range(len(sizes)):
        now = 0.0
        while True:
            now += dice.expovariate(1.0 / (mean_hours * 3600))
            if now >= span:
                break
            found.append(Failure(node, int(now), int(now) + repair_seconds))
            now += repair_seconds
    return sorted(found, key=lambda failure: (failure.at, failure.node))
