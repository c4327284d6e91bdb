"""
Which devices a winner gets.

Clearing has said that the winners fit, so placement cannot fail: blocks go largest
first, and while blocks of one size are being placed any domain with room will do (each
takes exactly one block of that size from the count). That freedom is used to keep the
wait short: devices that are free now before devices a displaced lease must first leave,
and then the tightest domain, so that large blocks stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec


class PlacementError(Exception):
    """Clearing promised room that is not there: a bug in one of the two."""


class Shelf(msgspec.Struct, frozen=True):
    """A domain's devices that winners may have."""

    domain: str
    free: tuple[str, ...]
    leaving: Mapping[str, tuple[str, ...]] = {}  # by displaced lease


class Seat(msgspec.Struct, frozen=True):
    domain: str
    devices: tuple[str, ...]
    taken_from: dict[str, int] = {}  # by displaced lease: how many of its devices


def place(shelves: Iterable[Shelf], winners: Sequence[tuple[str, int]]) -> dict[str, Seat]:
    """
    A seat for each winner, given as (id, block size) in rank order: of two blocks of one
    size, the one that ranks higher chooses first.
    """
    stock = {shelf.domain: _Stock(shelf) for shelf in shelves}
    seats: dict[str, Seat] = {}
    for winner, size in sorted(winners, key=lambda w: -w[1]):
        candidates = [s for s in stock.values() if s.total >= size]
        if not candidates:
            raise PlacementError(f"no domain has {size} devices left for {winner}")
        best = min(candidates, key=lambda s: (max(0, size - len(s.free)), s.total, s.domain))
        seats[winner] = best.take(size)
    return seats


class _Stock:
    """What is left of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.domain = shelf.domain
        self.free = sorted(shelf.free)
        # The lease that gives up most comes first, so that a winner waits for few.
        self.leaving = sorted(
            ((lease, sorted(devices)) for lease, devices in shelf.leaving.items()),
            key=lambda item: (-len(item[1]), item[0]),
        )
        self.total = len(self.free) + sum(len(devices) for _, devices in self.leaving)

    def take(self, size: int) -> Seat:
        devices = [self.free.pop(0) for _ in range(min(size, len(self.free)))]
        taken_from: dict[str, int] = {}
        for lease, stack in self.leaving:
            while stack and len(devices) < size:
                devices.append(stack.pop(0))
                taken_from[lease] = taken_from.get(lease, 0) + 1
        self.total -= size
        return Seat(self.domain, tuple(sorted(devices)), taken_from)
