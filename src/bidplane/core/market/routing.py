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

from collections.abc import Iterable, Mapping, Sequence

from bidplane.core.chain import Block, weight_of
from bidplane.core.market import preemption
from bidplane.core.market.clearing import Contestant
from bidplane.core.market.fast import clear_fast
from bidplane.core.market.lot import room_of, running
from bidplane.core.market.model import ONE, Ask, Extent, Incumbent, Lot


class Router:
    """Routes the bids of one round, in the order it is asked."""

    def __init__(self, lots: Iterable[Lot], incumbents: Sequence[Incumbent]) -> None:
        self._entries = {
            lot.name: _Entry(lot, [i for i in incumbents if i.lot == lot.name]) for lot in lots
        }

    def extent(self, lot: str) -> Extent:
        return self._entries[lot].extent

    def cheapest(self, blocks: Mapping[str, Block]) -> str:
        """Of the lots in `blocks`, the one where its block costs least to enter."""
        if len(blocks) == 1:
            return next(iter(blocks))
        return min(blocks, key=lambda name: self._entries[name].rank(blocks[name]))

    def surplus(self, ask: Ask, block: Block, lot: Lot) -> tuple[bool, int]:
        """What the ask would gain there, by today's prices; less than nothing if it cannot win."""
        closed, price, _ = self._entries[lot.name].rank(block)
        return not closed, (ask.offered - price) * weight_of(block, lot.leaves)

    def take(self, ask: Ask, block: Block, lot: Lot) -> None:
        """The ask goes there: who comes after it finds that much less."""
        if ask.offered >= lot.base:
            self._entries[lot.name].take(block)


class _Entry:
    """What a block costs in one lot, for a newcomer."""

    def __init__(self, lot: Lot, incumbents: Sequence[Incumbent]) -> None:
        self.lot = lot
        self.extent = Extent.of(lot)
        self._free = room_of(lot, ())
        # What a newcomer may have: the free blocks, and those of leases it may displace.
        protected = preemption.protected_by_fund(incumbents, lot.fund)
        self._contesting = [i for i in incumbents if i.id not in protected]
        self._contested = room_of(lot, self._contesting)
        self._displacing: dict[Block, int | None] = {}  # asked for again and again
        self._routed = 0

    def rank(self, block: Block) -> tuple[bool, int, str]:
        price = self._price(block)
        return price is None, self.lot.base if price is None else price, self.lot.name

    def take(self, block: Block) -> None:
        if self._free.fits(block):
            self._free = self._free.take(block)
            self._contested = self._contested.take(block)
            self._routed += 1
            # What displacing costs is worked out anew each time the load has doubled: more
            # often would cost a clearing per bid, for a price that hardly moves.
            if self._routed & (self._routed - 1) == 0:
                self._displacing.clear()

    def _price(self, block: Block) -> int | None:
        if self._free.fits(block):
            return self.lot.base
        if block not in self._displacing:
            newcomer = Contestant("", block, 0, ONE, 1 << 63, self.lot.base)
            contest = clear_fast(self._contested, map(running, self._contesting))
            self._displacing[block] = contest.price_to_win(newcomer)
        return self._displacing[block]
