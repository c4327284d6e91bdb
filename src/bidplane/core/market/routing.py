"""
Where a bid that names no pool goes: to the lot where its block costs least to enter.

What entering costs is asked of the lot as it is: the base price while blocks of that
size are free, else what it takes to displace a running lease, else nothing will do. The
bid's own offer plays no part in it. Each routed bid counts as there already for those
that follow, so that a free block does not draw everybody.

Within the lot it was routed to, "one less would have lost" holds; across lots nothing is
promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bidplane.core.chain import Block
from bidplane.core.market import preemption
from bidplane.core.market.clearing import Clearing, Contestant, clear
from bidplane.core.market.lot import running
from bidplane.core.market.model import ONE, Ask, Incumbent, Lot
from bidplane.core.market.room import Room


class Router:
    """Routes the bids of one round, in the order it is asked."""

    def __init__(self, lots: Iterable[Lot], incumbents: Sequence[Incumbent]) -> None:
        self._entries = {
            lot.name: _Entry(lot, [i for i in incumbents if i.lot == lot.name]) for lot in lots
        }

    def route(self, ask: Ask, block: int, lots: Iterable[Lot]) -> Lot | None:
        """
        One of `lots`; None when none has a domain as large as the block.

        A bid that cannot afford any of them goes to the cheapest, to be told its price.
        """
        entries = [self._entries[lot.name] for lot in lots if lot.largest >= block]
        if not entries:
            return None
        best = min(entries, key=lambda entry: entry.rank(block))
        if ask.price >= best.lot.base:
            best.take(block)
        return best.lot


class _Entry:
    """What a block costs in one lot, for a newcomer."""

    def __init__(self, lot: Lot, incumbents: Sequence[Incumbent]) -> None:
        self.lot = lot
        self._incumbents = incumbents
        self._free = Room({domain.name: len(domain.free) for domain in lot.domains})
        self._routed: list[Contestant] = []  # into free blocks
        self._displacing: dict[int, int | None] = {}  # by block; asked for again and again

    def rank(self, block: int) -> tuple[bool, int, str]:
        price = self._price(block)
        return price is None, self.lot.base if price is None else price, self.lot.name

    def take(self, block: int) -> None:
        if self._free.fits(Block(block)):
            self._free = self._free.take(Block(block))
            self._routed.append(
                Contestant(str(len(self._routed)), Block(block), _AHEAD_OF_ALL, ONE, 0, 0)
            )
            self._displacing.clear()

    def _price(self, block: int) -> int | None:
        if self._free.fits(Block(block)):
            return self.lot.base
        if block not in self._displacing:
            newcomer = Contestant("", Block(block), 0, ONE, 1 << 63, self.lot.base)
            contest = _contest(self.lot, self._incumbents, self._routed)
            price = contest.price_to_win(newcomer)
            self._displacing[block] = None if price is None or price > _AHEAD_OF_ALL else price
        return self._displacing[block]


_AHEAD_OF_ALL = 1 << 80


def _contest(lot: Lot, incumbents: Sequence[Incumbent], routed: Sequence[Contestant]) -> Clearing:
    """The running leases a newcomer may displace, beside those routed here before it."""
    protected = preemption.protected_by_fund(incumbents, lot.fund)
    contesting = [incumbent for incumbent in incumbents if incumbent.id not in protected]
    free = {domain.name: len(domain.free) for domain in lot.domains}
    for incumbent in contesting:
        free[incumbent.domain] += incumbent.gpus
    return clear(free, [*routed, *map(running, contesting)])
