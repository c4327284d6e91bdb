"""
The counters and containers of a room, one lot or several, seen alike: what a lease in its seat
gives back, and what a bid needs.

A *place* is a container of a lot: a link domain, or a GPU that is cut.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import PARTS, UNIT_WEIGHT, Block, weight_of
from bidplane.core.market.clearing.capacity import Counters, Room, need
from bidplane.core.market.joint.capacity import Rooms, in_lots

Place: TypeAlias = tuple[str, str]  # lot, "" where there is only one; container


def counters(room: Room) -> Counters:
    """Return how many more blocks of each size fit; of several lots, one lot after the other."""
    if isinstance(room, Rooms):
        return tuple(n for lot in sorted(room.lots) for n in room.lots[lot].spare)
    return room.spare


@lru_cache(maxsize=1 << 16)
def seats_of(block: Block) -> tuple[tuple[Place, int], ...]:
    """The places of what is pinned of a block, with the units it has of each."""
    return tuple(
        ((lot, container), units)
        for lot, part in _parts(block)
        if part.is_pinned
        for container, units in part.seats or ((part.domain, part.size),)
    )


def need_of(room: Room, block: Block) -> Counters:
    """The units that the movable parts of a block take from the counters."""
    if not isinstance(room, Rooms):
        zero = (0,) * len(room.spare)
        return zero if block.is_pinned else need(block, room.leaves, room.chain)
    parts = dict(in_lots(block))
    total: list[int] = []
    for lot in sorted(room.lots):
        inside = room.lots[lot]
        part = parts.get(lot)
        total += (0,) * len(inside.spare) if part is None else need_of(inside, part)
    return tuple(total)


def gain(room: Room, place: Place, units: int) -> Counters:
    """The change of the counters with so many more free units at a place, or fewer."""
    if not isinstance(room, Rooms):
        return room.gain(place[1], units)
    total: list[int] = []
    for lot in sorted(room.lots):
        inside = room.lots[lot]
        total += inside.gain(place[1], units) if lot == place[0] else (0,) * len(inside.spare)
    return tuple(total)


def gains_of(room: Room, block: Block) -> Counters:
    """The change of the counters when a pinned block leaves."""
    gains = [gain(room, place, units) for place, units in seats_of(block)]
    return tuple(map(sum, zip(*gains, strict=True)))


def fits_with(room: Room, more: Counters, block: Block) -> bool:
    """Return whether a block fits with so much more of each size, but no more at its places."""
    changes = [counters(room), more, tuple(-n for n in need_of(room, block))]
    if block.is_pinned:
        for place, units in seats_of(block):
            if free_at(room, place) < units:
                return False
            changes.append(gain(room, place, -units))
    return all(sum(change) >= 0 for change in zip(*changes, strict=True))


def free_at(room: Room, place: Place) -> int:
    """The free units of a place."""
    inside = room.lots[place[0]] if isinstance(room, Rooms) else room
    return inside.free.get(place[1], 0)


def seated(room: Room, blocks: Iterable[Block]) -> Room:
    """Return the room without what pinned blocks occupy."""
    if isinstance(room, Rooms):
        by_lot: dict[str, list[Block]] = {}
        for block in blocks:
            for lot, part in in_lots(block):
                by_lot.setdefault(lot, []).append(part)
        changed = {lot: seated(room.lots[lot], parts) for lot, parts in by_lot.items()}
        return Rooms({**room.lots, **changed})
    free = dict(room.free)
    for block in blocks:
        for (_, container), units in seats_of(block):
            free[container] -= units
    return Room(free, leaves=room.leaves, cut=room.cut, chain=room.chain)


def size_of(block: Block, room: Room) -> int:
    """The weight of a block, by which a price counts; also of a running lease."""
    if isinstance(room, Rooms):
        return sum(size_of(part, room.lots[lot]) for lot, part in in_lots(block))
    if not block.seats:
        return weight_of(block, room.leaves)
    weights = {leaf.name: leaf.weight for leaf in room.leaves}
    weights[PARTS] = UNIT_WEIGHT
    return sum(
        n * weights.get(room.cut.get(container, ""), GPU_WEIGHT) for container, n in block.seats
    )


def plus(one: Counters, other: Counters) -> Counters:
    """Add counter by counter."""
    return tuple(map(operator.add, one, other))


def minus(one: Counters, other: Counters) -> Counters:
    """Subtract counter by counter."""
    return tuple(map(operator.sub, one, other))


def least(one: Counters, other: Counters) -> Counters:
    """Return the lesser of both, counter by counter."""
    return tuple(map(min, one, other))


def units_by_place(blocks: Iterable[Block]) -> dict[Place, int]:
    """Sum the units that pinned blocks have of each place."""
    total: dict[Place, int] = {}
    for block in blocks:
        for place, units in seats_of(block):
            total[place] = total.get(place, 0) + units
    return total


def _parts(block: Block) -> Iterable[tuple[str, Block]]:
    lots: Mapping[str, Block] | None = dict(getattr(block, "lots", ())) or None
    return lots.items() if lots is not None else (("", block),)
