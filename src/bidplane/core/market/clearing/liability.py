"""
The payers for displaced leases.

Where bids displaced a lease together, each owes its part by GPUs, and the highest ranked the
remainder of the rounding. Agents of one owner owe each other nothing, or an owner with two agents
could pay itself.

Where the best set was searched (`exact`), nobody took any one's seat: there all running leases
begin in their seats, and bids are seated in the order of rank. Where one does not fit, leases leave
from the lowest rank up until it does, and those that still fit beside it return, the highest ranked
first. The bid owes the compensation of the others, all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.greedy import Clearing
from bidplane.core.market.model import Ask, Incumbent


class Seats:
    """Running leases in their seats, beside the bids that were accepted so far."""

    def __init__(self, room: Room, leases: Iterable[Contestant]) -> None:
        """`room`: what is free while all of the leases have their seats."""
        self._room = room
        self._leases = sorted(leases, key=lambda lease: lease.rank)

    def seat(self, bid: Contestant) -> list[Contestant]:
        """Seat an accepted bid. Return the leases that have to leave for it."""
        if self._room.fits(bid.block):
            self._room = self._room.take(bid.block)
            return []
        room, out = self._room, []
        spared_first = sorted(self._leases, key=lambda lease: not bid.spares(lease))
        for lease in reversed(spared_first):
            room = room.give(lease.block)
            out.append(lease)
            if room.fits(bid.block):
                break
        room = room.take(bid.block)
        displaced = []
        for lease in reversed(out):
            if room.fits(lease.block):
                room = room.take(lease.block)
            else:
                displaced.append(lease)
        self._room = room
        self._leases = [lease for lease in self._leases if lease not in displaced]
        return displaced


def payers(room: Room, clearing: Clearing) -> dict[str, str]:
    """By displaced lease, the bid that pays for it. `room`: with all leases in their seats."""
    displaced = [loser for loser in clearing.losers if loser.is_lease]
    if not displaced:
        return {}
    seats = Seats(room, displaced)
    return {
        lease.id: bid.id
        for bid in clearing.accepted
        if not bid.is_lease
        for lease in seats.seat(bid)
    }


def dues(
    takers: Mapping[str, Mapping[str, int]],
    asks: Mapping[str, Ask],
    incumbents: Mapping[str, Incumbent],
) -> dict[tuple[str, str], int]:
    """
    By (ask, lease), the part of the lease's compensation that the ask owes. `takers`: by displaced
    lease, how much of its seat each ask takes, the highest ranked first.
    """
    owed: dict[tuple[str, str], int] = {}
    for lease, sizes in takers.items():
        amount, whole = incumbents[lease].compensation, sum(sizes.values())
        parts = {ask: amount * size // whole for ask, size in sizes.items()}
        first = next(iter(parts))
        parts[first] += amount - sum(parts.values())
        for ask, part in parts.items():
            same_owner = asks[ask].owner == incumbents[lease].owner
            owed[ask, lease] = 0 if same_owner else part
    return owed
