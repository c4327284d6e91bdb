"""
The test whether a set of blocks fits, where some are of several lots at once.

A contestant that needs something of each of several lots fits if it fits in each. A lot's
room knows nothing of another's: no device is in two. So the rooms of all lots together are
as exact as each of them is, and every subset of a set that fits, fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Room


class DomainGpus(NamedTuple):
    """So many GPUs of one domain of a lot."""

    lot: str
    domain: str
    gpus: int


class Joint(Block, frozen=True):
    """The blocks that a contestant needs, one per lot; it wins all of them or none."""

    lots: tuple[tuple[str, Block], ...] = ()  # in the order of names
    # Of an ask whose sets are each in one machine: where each of them would be.
    sets: tuple[tuple[DomainGpus, ...], ...] = ()

    @property
    def is_pinned(self) -> bool:
        return any(block.is_pinned for _, block in self.lots)

    @property
    def gpus(self) -> int:
        return sum(gpus_of(block) for _, block in self.lots)

    @property
    def by_lot(self) -> dict[str, int]:
        return {lot: gpus_of(block) for lot, block in self.lots}


def joint(needs: Mapping[str, Block], sets: tuple[tuple[DomainGpus, ...], ...] = ()) -> Joint:
    return Joint(0, count=0, lots=tuple(sorted(needs.items())), sets=sets)


def reserve_of(block: Joint, bases: Mapping[str, int]) -> int:
    """
    The base price per GPU-hour of a joint block, weighted by GPUs, rounded up so that no lot is
    short.
    """
    if len(block.lots) == 1:
        return bases[block.lots[0][0]]
    worth = sum(bases[lot] * gpus for lot, gpus in block.by_lot.items())
    return -(-worth // block.gpus)


def gpus_of(block: Block) -> int:
    """Whole GPUs of a block, pinned or not."""
    return sum(units for _, units in block.seats) or block.gpus


class Rooms(Room):
    """The rooms of several lots, for contestants whose blocks are all `Joint`."""

    __slots__ = ("lots",)

    def __init__(self, lots: Mapping[str, Room]) -> None:
        self.lots = lots

    def __repr__(self) -> str:
        return f"<Rooms {' '.join(f'{lot}: {room}' for lot, room in sorted(self.lots.items()))}>"

    def take(self, block: Block) -> Rooms:
        return self._changed({lot: self.lots[lot].take(part) for lot, part in in_lots(block)})

    def give(self, block: Block) -> Rooms:
        return self._changed({lot: self.lots[lot].give(part) for lot, part in in_lots(block)})

    def fits(self, block: Block) -> bool:
        return all(self.lots[lot].fits(part) for lot, part in in_lots(block))

    def fits_without(self, leaving: Block, block: Block) -> bool:
        leaving_by_lot = dict(in_lots(leaving))
        return all(
            self.lots[lot].fits_without(leaving_by_lot[lot], part)
            if lot in leaving_by_lot
            else self.lots[lot].fits(part)
            for lot, part in in_lots(block)
        )

    def _changed(self, rooms: Mapping[str, Room]) -> Rooms:
        return Rooms({**self.lots, **rooms})


def in_lots(block: Block) -> tuple[tuple[str, Block], ...]:
    if not isinstance(block, Joint):
        raise TypeError(f"{block} says of no lot that it is there")
    return block.lots
