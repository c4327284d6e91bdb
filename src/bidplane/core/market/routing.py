"""
The routing of a bid that names no pool: to the lot where its block costs least to enter.

What entering costs is asked of the lot as it is: the base price while blocks of that
size are free, else what it takes to displace a running lease, else nothing will do. The
bid's own offer plays no part in it, nor in when it is routed. Each routed bid counts as there
already for those that follow, so that a free block does not draw everybody.

A part of a GPU for which no room is counted may still fit the rest of a cut GPU, of which the count
knows too little (see `clearing.capacity`). It is sent there by name, to the tightest one.

Within the lot it was routed to, and that rest, "one less would have lost" holds; across them
nothing is promised.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import CHAIN, PARTS, Block, weight_of
from bidplane.core.devices.placement import part_of
from bidplane.core.devices.ranges import size_of
from bidplane.core.market.clearing.capacity import Room, counted_as
from bidplane.core.market.clearing.columns import clear_fast
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.lot import room_of, running
from bidplane.core.market.joint.capacity import Joint, gpus_of, reserve_of
from bidplane.core.market.model import ONE, Ask, Incumbent, Lot
from bidplane.core.market.shapes import Extent, block_in


class Router:
    """Routes the bids of one round, in the order it is asked."""

    def __init__(self, lots: Iterable[Lot], incumbents: Sequence[Incumbent]) -> None:
        # A lease of several lots is in each of them with what it has there.
        running = [part for lease in incumbents for part in (lease, *lease.also)]
        self._entries = {
            lot.name: _Entry(lot, [i for i in running if i.lot == lot.name]) for lot in lots
        }

    def shapes(self, ask: Ask) -> dict[str, Block] | BidReason:
        """
        By lot that could serve the ask, the block it would be sold as; or the reason that none
        could.
        """
        names = self.lots(ask)
        if isinstance(names, BidReason):
            return names
        shapes = {name: block_in(ask, self.extent(name)) for name in names}
        blocks = {name: shape for name, shape in shapes.items() if isinstance(shape, Block)}
        # Of several lots that cannot, any one's reason will do.
        reasons = [shape for shape in shapes.values() if isinstance(shape, BidReason)]
        return blocks or min(reasons)

    def lots(self, ask: Ask) -> tuple[str, ...] | BidReason:
        """Return the lots with devices that an ask may enter; or why there is none."""
        if ask.lot and not self.sells(ask.lot):
            return BidReason.NO_SUCH_POOL
        names = [ask.lot] if ask.lot else list(ask.lots or self._entries)
        stocked = tuple(name for name in names if self.extent(name).devices)
        return stocked or BidReason.NO_DEVICES

    def is_free(self, lot: str, block: Block) -> bool:
        """Return whether it can be had there now without displacing anybody."""
        return self._entries[lot].is_free(block)

    def largest(self, ask: Ask) -> int:
        """The largest block that is sold in any lot that the ask may enter."""
        names = [ask.lot] if ask.lot else list(ask.lots or self._entries)
        extents = [self._entries[name].extent for name in names if self.sells(name)]
        sizes = [size for extent in extents for size in extent.chain if extent.blocks.get(size)]
        return max(sizes, default=CHAIN[0])

    def sells(self, lot: str) -> bool:
        """Return True if there is a lot of that name."""
        return lot in self._entries

    def extent(self, lot: str) -> Extent:
        return self._entries[lot].extent

    def cheapest(self, blocks: Mapping[str, Block]) -> str:
        """The lot of `blocks` where its block costs least to enter."""
        if len(blocks) == 1:
            return next(iter(blocks))
        return min(blocks, key=lambda name: self._entries[name].rank(blocks[name]))

    def seated(self, lot: str, block: Block) -> Block:
        """Return the block as it competes there: pinned to a rest that only it fits."""
        return self._entries[lot].seated(block)

    def surplus(self, ask: Ask, block: Block, lot: Lot) -> tuple[int, int]:
        """The chance to win it there, more being better, and the gain of the ask."""
        if isinstance(block, Joint):
            ranks = [(self._entries[name].rank(part), gpus_of(part)) for name, part in block.lots]
            gain = sum((ask.offered - price) * GPU_WEIGHT * gpus for (_, price, _), gpus in ranks)
            return -max(chance for (chance, _, _), _ in ranks), gain
        chance, price, _ = self._entries[lot.name].rank(block)
        return -chance, (ask.offered - price) * weight_of(block, lot.leaves)

    def take(self, ask: Ask, block: Block, lot: Lot) -> None:
        """Count an ask that is routed to the lot, so that later asks find that much less."""
        if ask.offered >= self.reserve(block, lot):
            for name, part in block.lots if isinstance(block, Joint) else ((lot.name, block),):
                self._entries[name].take(part)

    def reserve(self, block: Block, lot: Lot) -> int:
        """The base price of the block per GPU, weighted by GPUs where it spans several lots."""
        if not isinstance(block, Joint):
            return lot.base
        return reserve_of(block, {name: self._entries[name].lot.base for name, _ in block.lots})

    def holds(self, block: Joint) -> bool:
        """Return True if the block fits its lots when nobody leases anything."""
        return all(self._entries[name].whole.fits(part) for name, part in block.lots)

    def contesting(self, lot: str) -> Sequence[Incumbent]:
        """The leases there that somebody may displace."""
        return self._entries[lot].contesting


class _Chance(enum.IntEnum):
    """The ways to have a block in a lot, the best first."""

    FOR_A_PRICE = 0
    BEFORE_OTHERS = 1  # those routed there already may have to give way to it
    NONE = 2


class _Entry:
    """The cost of a block in one lot, for a newcomer."""

    def __init__(self, lot: Lot, incumbents: Sequence[Incumbent]) -> None:
        self.lot = lot
        self.extent = lot.extent
        self._free = room_of(lot, ())
        # What a newcomer may have: the free blocks, and those of leases it may displace.
        self.contesting = incumbents
        self._contested = self._could_be_had = room_of(lot, self.contesting)
        self._displacing: dict[Block, int | None] = {}  # asked for again and again
        self._routed = 0
        self._sent: Counter[tuple[int, str]] = Counter()  # by rest: parts that were sent there

    @cached_property
    def whole(self) -> Room:
        sizes = {domain.name: domain.size + domain.closed for domain in self.lot.domains}
        return Room(sizes, leaves=self.lot.leaves, chain=self.lot.chain)

    def is_free(self, block: Block) -> bool:
        return self._free.fits(block)

    def rank(self, block: Block) -> tuple[_Chance, int, str]:
        price = self._price(block)
        if price is not None:
            return _Chance.FOR_A_PRICE, price, self.lot.name
        chance = _Chance.BEFORE_OTHERS if self._could_be_had.fits(block) else _Chance.NONE
        return chance, self.lot.base, self.lot.name

    def take(self, block: Block) -> None:
        for container, units in block.seats if block.units else ():
            self._send(container, units)
        if self._free.fits(block):
            self._free = self._free.take(block)
            self._contested = self._contested.take(block)
            self._routed += 1
            # What displacing costs is worked out anew each time the load has doubled: more
            # often would cost a clearing per bid, for a price that hardly moves.
            if self._routed & (self._routed - 1) == 0:
                self._displacing.clear()

    def seated(self, block: Block) -> Block:
        if self._free.fits(block) or (rest := self._rest_for(block)) is None:
            return block
        return msgspec.structs.replace(block, seats=((rest[1], block.units),))

    def _rest_for(self, block: Block) -> tuple[int, str] | None:
        """
        A rest of a cut GPU that a part fits, and that is too small to be counted for it: the
        tightest that nobody was sent to; else one of those where fewest were, to be outbid there.
        """
        if not block.units or block.count > 1:
            return None
        counted = counted_as(block.units, self.lot.leaves)
        at = bisect_left(self._rests, (block.units, ""))
        if at < len(self._rests) and self._rests[at][0] < counted:
            return self._rests[at]
        contested = [
            (number, rest)
            for rest, number in self._sent.items()
            if block.units <= rest[0] < counted
        ]
        return min(contested)[1] if contested else None

    @cached_property
    def _rests(self) -> list[tuple[int, str]]:
        """The free units of each cut GPU, and which it is, the smallest first."""
        return sorted(
            (size_of(kinds[PARTS]), part_of(device, PARTS))
            for domain in self.lot.domains
            for device, kinds in domain.cut.items()
            if PARTS in kinds
        )

    def _send(self, container: str, units: int) -> None:
        """Count a part that is sent to a rest."""
        for at, (free, name) in enumerate(self._rests):
            if name == container:
                self._sent[free, container] += 1
                del self._rests[at]
                if free > units:
                    insort(self._rests, (free - units, container))
                return
        rest = next(rest for rest in self._sent if rest[1] == container)
        self._sent[rest] += 1

    def _price(self, block: Block) -> int | None:
        if self._free.fits(block) or self._rest_for(block) in self._rests:
            return self.lot.base
        if block not in self._displacing:
            newcomer = Contestant("", block, 0, ONE, 1 << 63, self.lot.base)
            contest = clear_fast(self._contested, map(running, self.contesting))
            self._displacing[block] = contest.price_to_win(newcomer)
        return self._displacing[block]
