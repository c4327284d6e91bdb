"""
Defragmentation, as a proposal: which movable leases to move so that a waiting block fits.

Never part of a round. A move costs what a preemption would: its notice and restart, paid
to the lease that moves. So it is proposed only if the bid that waits would pay for all of
the moves within the time its own interruption must pay off in; the proposal says what
each costs, and whoever may decide decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bidplane.core.market.model import Lot
from bidplane.core.market.preemption import PAYBACK_SECONDS


class Movable(msgspec.Struct, frozen=True, kw_only=True):
    """A running lease whose agent lets it be moved."""

    id: str
    domain: str
    gpus: int
    fee: int  # what it is owed for moving, micro-credits


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    ask: str
    size: int  # of its block
    price: int  # the most it pays per GPU-hour


class Move(msgspec.Struct, frozen=True, kw_only=True):
    lease: str
    source: str
    target: str
    gpus: int
    fee: int


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    ask: str
    domain: str  # where the block will be
    moves: tuple[Move, ...]
    fee: int  # of all moves
    worth: int  # what the bid would pay beyond the base price until it has paid off


def propose(lot: Lot, movable: Sequence[Movable], waiting: Waiting) -> Proposal | None:
    """The cheapest set of moves that frees one domain for the block; None if none pays."""
    free = {domain.name: len(domain.free) for domain in lot.domains}
    sizes = {domain.name: domain.size for domain in lot.domains}
    if any(count >= waiting.size for count in free.values()):
        return None  # it fits already: what it lacks is a price
    worth = (waiting.price - lot.base) * waiting.size * PAYBACK_SECONDS // 3600
    found = [
        proposal
        for domain in sorted(free)
        if sizes[domain] >= waiting.size
        and (proposal := _emptied(domain, free, movable, waiting, worth)) is not None
    ]
    paying = [proposal for proposal in found if proposal.fee <= worth]
    return min(paying, key=lambda p: (p.fee, len(p.moves), p.domain), default=None)


def _emptied(
    domain: str, free: dict[str, int], movable: Sequence[Movable], waiting: Waiting, worth: int
) -> Proposal | None:
    """Move leases out of `domain`, the cheapest per GPU first, each to the tightest place."""
    left = dict(free)
    here = [lease for lease in movable if lease.domain == domain]
    here.sort(key=lambda lease: (lease.fee * 1000 // lease.gpus, -lease.gpus, lease.id))
    moves: list[Move] = []
    for lease in here:
        if left[domain] >= waiting.size:
            break
        targets = [d for d, n in left.items() if d != domain and n >= lease.gpus]
        if not targets:
            continue
        target = min(targets, key=lambda d: (left[d], d))
        left[target] -= lease.gpus
        left[domain] += lease.gpus
        moves.append(
            Move(lease=lease.id, source=domain, target=target, gpus=lease.gpus, fee=lease.fee)
        )
    if left[domain] < waiting.size:
        return None
    kept = _needed(moves, free[domain], waiting.size)
    fee = sum(move.fee for move in kept)
    return Proposal(ask=waiting.ask, domain=domain, moves=kept, fee=fee, worth=worth)


def _needed(moves: Sequence[Move], free: int, size: int) -> tuple[Move, ...]:
    """Without the moves that a later, larger one made needless; the dearest go first."""
    kept = list(moves)
    for move in sorted(moves, key=lambda m: (-m.fee, m.lease)):
        if free + sum(m.gpus for m in kept if m is not move) >= size:
            kept.remove(move)
    return tuple(kept)
