"""
The same result as `placement`, fast enough for thousands of winners.

A domain without displaced leases is chosen by its number of free devices and then by name; once a
block is taken from it, it is the tightest and so the next choice again. So the sequence of choices
for one size is a sort. Only domains that displaced leases must leave are examined one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bidplane.core.devices.chain import Block, Leaf
from bidplane.core.devices.placement import (
    FreeDevices,
    PlacementError,
    Seat,
    Shelf,
    joined,
    place,
    sizes_of,
)

Ints: TypeAlias = NDArray[np.int64]

WORTH_IT = 64  # winners; with fewer, `placement.place` is as fast


class Columns:
    """The domains without displaced leases, in the order of their names, as arrays."""

    def __init__(self, free: Ints) -> None:
        self.free = free.astype(np.int64)
        self.taken = np.zeros(len(free), np.int64)

    def sequence(self, size: int, most: int) -> tuple[Ints, Ints]:
        """
        Return the domains of the next `most` blocks of `size`, and each block's place in its
        domain.
        """
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
        """Remove blocks of `size` from domains, one for each mention."""
        used = np.bincount(domains, minlength=len(self.free)) * size
        self.free -= used
        self.taken += used


def seats(free: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """
    Return the domain of each block of `sizes`, in rank order, and the place of its first device.

    No lease is displaced.
    """
    columns = Columns(free)
    domain, first = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    for size in np.unique(sizes)[::-1].tolist():
        same_size = np.flatnonzero(sizes == size)
        chosen, places = columns.sequence(size, len(same_size))
        if len(chosen) < len(same_size):
            raise PlacementError(f"no domain has {size} devices left")
        columns.take(chosen, size)
        domain[same_size], first[same_size] = chosen, places
    return domain, first


def place_fast(
    shelves: Iterable[Shelf],
    winners: Sequence[tuple[str, Block]],
    leaves: tuple[Leaf, ...] = (),
) -> dict[str, Seat]:
    """Return the same seats as `place`, which it calls for few winners and where GPUs are cut."""
    shelves = list(shelves)
    cut = any(shelf.parted for shelf in shelves) or any(block.share for _, block in winners)
    if cut or len(winners) < WORTH_IT:
        return place(shelves, winners, leaves)
    clean = sorted((s for s in shelves if not s.leaving), key=lambda s: s.domain)
    columns = Columns(np.array([len(s.free) for s in clean], np.int64))
    devices: dict[int, list[str]] = {}  # by clean domain, in order; only of those used
    mixed = [FreeDevices(shelf) for shelf in shelves if shelf.leaving]
    parts: dict[str, list[Seat]] = {}
    block_sizes = [(size, id) for id, block in winners for size in sizes_of(block)]
    for size in sorted({size for size, _ in block_sizes}, reverse=True):
        same_size = [winner for part, winner in block_sizes if part == size]
        chosen, places = columns.sequence(size, len(same_size))
        heap = [(*stock.rank(size), n) for n, stock in enumerate(mixed) if stock.total >= size]
        heapq.heapify(heap)
        used = 0
        for winner in same_size:
            head = None
            if used < len(chosen):
                index = int(chosen[used])
                # The free devices of this domain by now: its places are given out in order.
                free_now = int(columns.free[index] + columns.taken[index] - places[used])
                head = (0, free_now, clean[index].domain)
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
    return {winner: joined(seats) for winner, seats in parts.items()}
