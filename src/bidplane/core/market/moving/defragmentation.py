"""
Defragmentation: which movable leases to move so that a waiting block fits, and who pays.

Looked at when a lot has been cleared, on what the round left. A move costs what displacing
would: notice and restart of the lease that moves, paid to it by the bid it makes room for. So
room is made only for a bid whose price covers the moves within the time in which an
interruption must pay off; of several such bids the highest ranked gets it, and its price is
the least with which it would have: what covers the moves, and what the next of them offers.

Only leases move whose agent has agreed to it, each as a whole, to devices that are free now.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bidplane.api.money import SECONDS_PER_HOUR
from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.preemption import PAYBACK_SECONDS
from bidplane.core.market.model import Incumbent, Lot

Free = Mapping[str, Sequence[str]]  # by domain: devices that nobody holds


class WaitingBlock(NamedTuple):
    """A bid for one block that the round could not serve."""

    contestant: Contestant
    owner: str
    purse: int  # the most it can pay for the moves, beside what it holds


class LeaseMove(NamedTuple):
    lease: Incumbent
    target: str  # the domain it goes to


class MovePlan(NamedTuple):
    """The cheapest moves that free one domain, or one GPU, for a block, whoever wants it."""

    size: int
    domain: str
    moves: tuple[LeaseMove, ...]
    # Of parts that leave one GPU: which it is; and for each move the GPU and places it goes to.
    device: str = ""
    homes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def fee(self, owner: str) -> int:
        """
        The compensation that a bid of that owner owes for the moves. Agents of one owner owe each
        other nothing.
        """
        return sum(move.lease.compensation for move in self.moves if move.lease.owner != owner)

    def least_price(self, base: int, owner: str) -> int:
        """
        The least price with which a bid pays for the moves, beyond the base price, until they have
        paid off.
        """
        return base - (-self.fee(owner) * SECONDS_PER_HOUR // (self.size * PAYBACK_SECONDS))


class RoomMade(NamedTuple):
    """The moves that make room for one bid, and its price."""

    bidder: WaitingBlock
    plan: MovePlan
    price: int

    @property
    def fee(self) -> int:
        return self.plan.fee(self.bidder.owner)


def make_room(
    lot: Lot,
    free: Free,
    incumbents: Iterable[Incumbent],
    bidders: Iterable[WaitingBlock],
    whole: Callable[[], MovePlan | None] = lambda: None,
) -> RoomMade | None:
    """
    Return the bid for which room is made, and how; None if none pays for it. `whole` finds the
    moves of shares that leave a whole GPU free.
    """
    movable = [incumbent for incumbent in incumbents if incumbent.movable]
    if not movable:
        return None
    waiting = [bidder for bidder in bidders if _is_one_block(bidder.contestant.block)]
    sizes = sorted({bidder.contestant.block.size for bidder in waiting})
    blocks = [incumbent for incumbent in movable if not incumbent.share]
    plans = {size: plan for size in sizes if (plan := propose(lot, free, blocks, size))}
    if 1 in sizes and not any(free.values()) and (plan := whole()) is not None:
        plans[1] = plan
    able = [
        bidder
        for bidder in waiting
        if (plan := plans.get(bidder.contestant.block.size)) is not None
        and bidder.contestant.price >= plan.least_price(lot.base, bidder.owner)
        and bidder.purse >= plan.fee(bidder.owner)
    ]
    if not able:
        return None
    first, *runners_up = sorted(able, key=lambda bidder: bidder.contestant.rank)
    plan = plans[first.contestant.block.size]
    price = plan.least_price(lot.base, first.owner)
    if runners_up:
        price = max(price, first.contestant.price_ahead_of(runners_up[0].contestant))
    return RoomMade(first, plan, price)


def _is_one_block(block: Block) -> bool:
    return block.size > 0 and block.count == 1 and not block.rest and not block.is_pinned


# In a large lot, the moves out of so many domains are worked out: those that would cost least if
# everybody found a place. The cheapest is among them, unless none of them finds one.
LOOKED_AT = 64


def propose(lot: Lot, free: Free, movable: Sequence[Incumbent], size: int) -> MovePlan | None:
    """The cheapest set of moves that frees one domain for a block; None if none does."""
    count = {domain.name: len(free[domain.name]) for domain in lot.domains}
    if any(n >= size for n in count.values()):
        return None  # it fits already: what it lacks is a price
    by_domain: dict[str, list[Incumbent]] = {}
    for lease in movable:
        by_domain.setdefault(lease.domain, []).append(lease)
    ways = []
    for domain in lot.domains:
        leases = sorted(by_domain.get(domain.name, ()), key=_cheap)
        if domain.size >= size and count[domain.name] + sum(i.gpus for i in leases) >= size:
            ways.append((_estimate(leases, size - count[domain.name]), domain.name, leases))
    ways.sort(key=lambda way: way[:2])
    places = _Places(count)
    plans = [
        plan
        for _, name, leases in ways[:LOOKED_AT]
        if (plan := _plan_for_domain(name, count[name], leases, size, places)) is not None
    ]
    return min(plans, key=lambda p: (p.fee(""), len(p.moves), p.domain), default=None)


def _cheap(lease: Incumbent) -> tuple[int, int, str]:
    return lease.compensation * 1000 // lease.gpus, -lease.gpus, lease.id


def _estimate(leases: Sequence[Incumbent], gpus: int) -> int:
    """The compensation for moving leases of so many GPUs away, wherever they go."""
    fee = 0
    for lease in leases:
        if gpus <= 0:
            break
        fee, gpus = fee + lease.compensation, gpus - lease.gpus
    return fee


class _Places:
    """The targets of moves: the tightest domain that has room, among equals the first by name."""

    def __init__(self, count: Mapping[str, int]) -> None:
        self._count = count
        self._by_free: dict[int, list[str]] = {}
        for name in sorted(count):
            self._by_free.setdefault(count[name], []).append(name)

    def tightest(self, gpus: int, planned: Mapping[str, int], source: str) -> str | None:
        """
        The domain to move a lease of `gpus` to. `planned`: by domain, what this plan has put there.
        """
        for n in range(gpus, max(self._by_free, default=0) + 1):
            names = [name for name, put in planned.items() if self._count[name] - put == n]
            names += itertools.islice(
                (d for d in self._by_free.get(n, ()) if d not in planned and d != source), 1
            )
            if names:
                return min(names)
        return None


def _plan_for_domain(
    domain: str, free: int, leases: Sequence[Incumbent], size: int, places: _Places
) -> MovePlan | None:
    """Move leases out of `domain`, the cheapest per GPU first, each to the tightest place."""
    planned: dict[str, int] = {}
    moves: list[LeaseMove] = []
    freed = free
    for lease in leases:
        if freed >= size:
            break
        target = places.tightest(lease.gpus, planned, domain)
        if target is None:
            continue
        planned[target] = planned.get(target, 0) + lease.gpus
        freed += lease.gpus
        moves.append(LeaseMove(lease, target))
    if freed < size:
        return None
    return MovePlan(size, domain, _without_needless(moves, free, size))


def _without_needless(moves: Sequence[LeaseMove], free: int, size: int) -> tuple[LeaseMove, ...]:
    """
    The moves without those that a later, larger one made needless; the dearest are dropped first.
    """
    necessary = list(moves)
    for move in sorted(moves, key=lambda m: (-m.lease.compensation, m.lease.id)):
        if free + sum(m.lease.gpus for m in necessary if m is not move) >= size:
            necessary.remove(move)
    return tuple(necessary)
