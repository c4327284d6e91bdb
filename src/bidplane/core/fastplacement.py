"""
The same seats as `placement`, for thousands of winners.

A domain nobody is displaced from is chosen by what it has free and then by name; once a
block of it was taken it is the tightest of all, and the next choice again. So the whole
sequence of choices for one size is a sort. Only domains that somebody must leave are
looked at one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bidplane.core.chain import Block, Leaf
from bidplane.core.placement import PlacementError, Seat, Shelf, Stock, joined, place, sizes_of

Ints: TypeAlias = NDArray[np.int64]

WORTH_IT = 64  # winners; below, the readable one is as fast


class Columns:
    """Domains nobody is displaced from, in the order of their names."""

    def __init__(self, free: Ints) -> None:
        self.free = free.astype(np.int64)
        self.taken = np.zeros(len(free), np.int64)

    def sequence(self, size: int, most: int) -> tuple[Ints, Ints]:
        """The domains of the next `most` blocks of `size`, and the place of each in its domain."""
        able = np.flatnonzero(self.free >= size)
        # Small numbers sort faster; a stable sort leaves equals in the order of names.
        able = able[np.argsort(self.free[able].astype(np.int16), kind="stable")]
        blocks = self.free[able] // size
        total = blocks.cumsum()
        used = int(np.searchsorted(total, most)) + 1
        able, blocks, total = able[:used], blocks[:used], total[:used]
        chosen = np.repeat(able, blocks)[:most]
        nth = (np.arange(int(total[-1]) if len(total) else 0) - np.repeat(total - blocks, blocks))[
            :most
        ]
        return chosen, self.taken[chosen] + nth * size

    def take(self, domains: Ints, size: int) -> None:
        used = np.bincount(domains, minlength=len(self.free)) * size
        self.free -= used
        self.taken += used


def seats(free: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """
    For blocks of `sizes`, in rank order: the domain of each, and the place of its first
    device. Nobody is displaced.
    """
    columns = Columns(free)
    domain, first = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    for size in np.unique(sizes)[::-1].tolist():
        mine = np.flatnonzero(sizes == size)
        chosen, places = columns.sequence(size, len(mine))
        if len(chosen) < len(mine):
            raise PlacementError(f"no domain has {size} devices left")
        columns.take(chosen, size)
        domain[mine], first[mine] = chosen, places
    return domain, first


def place_fast(
    shelves: Iterable[Shelf],
    winners: Sequence[tuple[str, Block]],
    leaves: tuple[Leaf, ...] = (),
) -> dict[str, Seat]:
    """As `place`; hands over to it what is too little, or shares."""
    shelves = list(shelves)
    if len(winners) < WORTH_IT or any(block.share for _, block in winners):
        return place(shelves, winners, leaves)
    clean = sorted((s for s in shelves if not s.leaving), key=lambda s: s.domain)
    columns = Columns(np.array([len(s.free) for s in clean], np.int64))
    devices: dict[int, list[str]] = {}  # by clean domain, in order; only of those used
    mixed = [Stock(shelf) for shelf in shelves if shelf.leaving]
    parts: dict[str, list[Seat]] = {}
    whole = [(size, id) for id, block in winners for size in sizes_of(block)]
    for size in sorted({size for size, _ in whole}, reverse=True):
        mine = [winner for part, winner in whole if part == size]
        chosen, places = columns.sequence(size, len(mine))
        heap = [(*stock.rank(size), n) for n, stock in enumerate(mixed) if stock.total >= size]
        heapq.heapify(heap)
        used = 0
        for winner in mine:
            head = None
            if used < len(chosen):
                index = int(chosen[used])
                # What this domain has left by now: its places are given out in order.
                left = int(columns.free[index] + columns.taken[index] - places[used])
                head = (0, left, clean[index].domain)
            if heap and (head is None or heap[0][:3] < head):
                stock = mixed[heapq.heappop(heap)[3]]
                seat = stock.take(size)
                if stock.total >= size:
                    heapq.heappush(heap, (*stock.rank(size), mixed.index(stock)))
            elif head is not None:
                names = devices.setdefault(index, [])
                if not names:
                    names.extend(sorted(clean[index].free))
                first = int(places[used])
                seat = Seat(clean[index].domain, tuple(names[first : first + size]))
                used += 1
            else:
                raise PlacementError(f"no domain has {size} devices left for {winner}")
            parts.setdefault(winner, []).append(seat)
        columns.take(chosen[:used], size)
    return {winner: joined(found) for winner, found in parts.items()}
