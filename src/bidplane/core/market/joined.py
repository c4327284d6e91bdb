"""
Lots that somebody needs together, in one round: cleared as one, each seen by itself after.

In a component (`components`) all contestants are taken in the order of their keys, each
accepted if it fits in every lot it needs (`rooms`). Critical prices are the general ones of
`clearing`. A lease of several lots is kept in all of them or displaced from all; each lot's
fund pays its part of the compensation, and whoever takes any of its devices owes as much to
each of these funds.

Whoever is in one lot only is treated there as in `lot`, and room is made there as in any lot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason
from bidplane.core.chain import Block, weight_of
from bidplane.core.fastplacement import place_fast
from bidplane.core.market import preemption
from bidplane.core.market.clearing import Clearing, Contestant, clear
from bidplane.core.market.components import Component
from bidplane.core.market.exact import clear_exactly
from bidplane.core.market.lot import (
    CLEARINGS_MOST,
    Contest,
    beyond_their_preemptors,
    count_of,
    kept_of,
    new,
    room_of,
    running,
    shelves,
    summary,
)
from bidplane.core.market.model import (
    Ask,
    Displaced,
    Incumbent,
    Lost,
    Lot,
    LotResult,
    Moved,
    RoundResult,
    Won,
)
from bidplane.core.market.moving import with_moves
from bidplane.core.market.rooms import Joint, Rooms, in_lots, joint, reserve_of
from bidplane.core.placement import Seat, joined, take_pinned


class _Outcome(NamedTuple):
    rooms: Rooms  # what was competed for
    whole: Contest  # of all lots: each ask's seats, and what it owes in all
    by_lot: dict[str, Contest]  # what it has there, and owes to that lot's fund


def clear_joined(some: Component) -> RoundResult:
    protected: set[str] = set()
    for lot in some.lots:
        protected |= preemption.protected_by_fund(_parts_in(lot.name, some.incumbents), lot.fund)
    for _ in range(CLEARINGS_MOST):
        outcome = _contest(some, protected)
        beyond = beyond_their_preemptors(outcome.whole, some.entries)
        if not beyond:
            break
        protected |= beyond
    else:
        protected = {lease.id for lease in some.incumbents}
        outcome = _contest(some, protected)
    clearing = outcome.whole.clearing
    result = RoundResult(
        won=tuple(_won(some, outcome)),
        lost=tuple(_lost(some, outcome.rooms, clearing)),
        kept=tuple(
            kept_of(
                {lease.id for lease in some.incumbents},
                protected,
                clearing,
                lambda: _clear(some, some.incumbents)[1],
            )
        ),
        displaced=tuple(_displaced(some, outcome)),
    )
    return _with_moves(some, outcome, result, protected)


def _parts_in(lot: str, leases: Iterable[Incumbent]) -> list[Incumbent]:
    """What leases have there."""
    return [part for lease in leases for part in (lease, *lease.also) if part.lot == lot]


# Who wins


def _clear(some: Component, incumbents: Sequence[Incumbent]) -> tuple[Rooms, Clearing]:
    rooms = Rooms({lot.name: room_of(lot, _parts_in(lot.name, incumbents)) for lot in some.lots})
    bases = {lot.name: lot.base for lot in some.lots}
    field = [_new(entry.ask, entry.lot, entry.block, bases) for entry in some.entries]
    field += map(_running, incumbents)
    best = clear_exactly(rooms, field) if all(lot.exact for lot in some.lots) else None
    return rooms, best or clear(rooms, field)


def _new(ask: Ask, lot: Lot, block: Block, bases: Mapping[str, int]) -> Contestant:
    over = block if isinstance(block, Joint) else joint({lot.name: block})
    return new(ask, over, reserve_of(over, bases))


def _running(lease: Incumbent) -> Contestant:
    parts = {part.lot: part.block for part in (lease, *lease.also)}
    return running(lease)._replace(block=joint(parts))


def _contest(some: Component, protected: set[str]) -> _Outcome:
    contesting = {i.id: i for i in some.incumbents if i.id not in protected}
    rooms, clearing = _clear(some, list(contesting.values()))
    asks = {entry.ask.id: entry.ask for entry in some.entries}
    gone = [contesting[c.id] for c in clearing.losers if c.id in contesting]
    views = {lot.name: _InLot(clearing, rooms, lot.name) for lot in some.lots}
    seats = {lot.name: _seats(lot, views[lot.name].accepted, gone, asks) for lot in some.lots}
    whole = {
        id: _beside([here[id] for here in seats.values() if id in here])
        for id in dict.fromkeys(id for here in seats.values() for id in here)
    }
    # Each lot's fund by itself, and of each the whole of what it owes: so that what is paid
    # into it is what it pays, to the last micro-credit.
    owed = {
        lot.name: preemption.dues(whole, asks, {i.id: _owed_by(lot.name, i) for i in gone})
        for lot in some.lots
    }
    total: dict[tuple[str, str], int] = {}
    for dues in owed.values():
        for key, amount in dues.items():
            total[key] = total.get(key, 0) + amount
    by_lot = {name: Contest(views[name], seats[name], owed[name]) for name in seats}
    return _Outcome(rooms, Contest(clearing, whole, total), by_lot)


class _InLot(Clearing):
    """How a lot looks from inside: what of it each winner has, and what one more would cost."""

    def __init__(self, whole: Clearing, rooms: Rooms, lot: str) -> None:
        super().__init__(rooms.lots[lot])
        self._whole = whole
        self._lot = lot
        self.accepted = [
            winner._replace(block=block)
            for winner in whole.accepted
            for name, block in in_lots(winner.block)
            if name == lot
        ]

    def price_to_win(self, outsider: Contestant) -> int | None:
        block = joint({self._lot: outsider.block})
        return self._whole.price_to_win(outsider._replace(block=block))


def _seats(
    lot: Lot, accepted: Iterable[Contestant], gone: Iterable[Incumbent], asks: Mapping[str, Ask]
) -> dict[str, Seat]:
    winners = [(c.id, c.block) for c in accepted if c.id in asks]
    left, pinned = take_pinned(
        shelves(lot, _parts_in(lot.name, gone)), [w for w in winners if w[1].is_pinned]
    )
    placed = place_fast(left, [w for w in winners if not w[1].is_pinned], lot.leaves)
    return {**pinned, **placed}


def _beside(seats: Sequence[Seat]) -> Seat:
    """What one ask has in several lots, block after block."""
    if len(seats) == 1:
        return seats[0]
    whole = joined(seats)
    return msgspec.structs.replace(
        whole,
        domains=tuple(name for seat in seats for name in seat.domains or (seat.domain,)),
        parts=tuple(n for seat in seats for n in seat.parts or (len(seat.devices),)),
    )


def _owed_by(lot: str, lease: Incumbent) -> Incumbent:
    """The lease, with what this lot's fund owes it."""
    owed = sum(part.compensation for part in _parts_in(lot, [lease]))
    return msgspec.structs.replace(lease, compensation=owed)


# What becomes of each


def _won(some: Component, outcome: _Outcome) -> Iterator[Won]:
    admitted = {entry.ask.id: entry for entry in some.entries}
    lots = {lot.name: lot for lot in some.lots}
    for winner in outcome.whole.clearing.accepted:
        entry = admitted.get(winner.id)
        if entry is None:
            continue
        seat, block = outcome.whole.seats[winner.id], entry.block
        funds = {
            name: amount
            for name, there in outcome.by_lot.items()
            if (amount := sum(there.owed[winner.id, lease] for lease in seat.taken_from))
        }
        price = outcome.whole.clearing.critical_price(winner)
        won = Won(
            ask=winner.id,
            lot=entry.lot.name,
            gpus=count_of(block),
            price=entry.ask.with_premium(price),
            hold=entry.hold,
            minimum=sum(funds.values()),
            domain=seat.domain,
            devices=seat.devices,
            waits_for=tuple(sorted(seat.taken_from)),
            share=block.share,
            places=seat.places,
            domains=seat.domains,
            parts=seat.parts,
            option=entry.option,
            weight=weight_of(block, lots[entry.lot.name].leaves),
            funds={} if set(funds) <= {entry.lot.name} else funds,
        )
        yield _by_machine(won, block, outcome) if isinstance(block, Joint) else won


def _by_machine(won: Won, block: Joint, outcome: _Outcome) -> Won:
    """Its devices, set after set: each set is what one machine gives."""
    won = msgspec.structs.replace(won, by_lot=block.by_lot)
    if not block.sets:
        return won
    stacks: dict[tuple[str, str], list[str]] = {}
    for lot, there in block.lots:
        seat = outcome.by_lot[lot].seats[won.ask]
        devices = iter(seat.devices)
        for domain, gpus in there.seats:
            stacks[lot, domain] = [next(devices) for _ in range(gpus)]
    sets = []
    for places in block.sets:
        given = []
        for lot, domain, gpus in places:
            stack = stacks[lot, domain]
            given += stack[:gpus]
            del stack[:gpus]
        sets.append(given)
    several = len(sets) > 1
    return msgspec.structs.replace(
        won,
        domain=block.sets[0][0].domain,
        devices=tuple(device for given in sets for device in given),
        domains=tuple(places[0].domain for places in block.sets) if several else (),
        parts=tuple(map(len, sets)) if several else (),
    )


def _lost(some: Component, rooms: Rooms, clearing: Clearing) -> Iterator[Lost]:
    bases = {lot.name: lot.base for lot in some.lots}
    lots = {lot.name: lot for lot in some.lots}
    admitted = {entry.ask.id: entry for entry in some.entries}

    def told(loss: Lost, ask: Ask, block: Block, price: int | None, *, lost: bool) -> Lost:
        left = rooms if price is None else clearing.room
        over = block if isinstance(block, Joint) else joint({loss.lot: block})
        missing = tuple(
            lot
            for lot, part in over.lots
            if isinstance(left, Rooms) and not left.lots[lot].fits(part)
        )
        found = missing if isinstance(block, Joint) else (loss.lot,)
        withheld = [lots[lot].withheld for lot in found if lots[lot].withheld]
        loss = msgspec.structs.replace(
            loss,
            price_to_win=None if price is None else ask.with_premium(price),
            withheld="; ".join(withheld) if lost or price is None else "",
        )
        if not isinstance(block, Joint):
            return loss
        return msgspec.structs.replace(
            loss, by_lot=block.by_lot, one_node=ask.one_node, missing=missing
        )

    for loser in clearing.losers:
        entry = admitted.get(loser.id)
        if entry is None:
            continue
        price = clearing.price_to_win(loser)
        loss = Lost(
            ask=loser.id,
            reason=BidReason.NO_FREE_BLOCK if price is None else BidReason.OUTBID,
            lot=entry.lot.name,
            price=entry.ask.price,
            gpus=count_of(entry.block),
            share=entry.block.share,
            option=entry.option,
            weight=weight_of(entry.block, entry.lot.leaves),
        )
        yield told(loss, entry.ask, entry.block, price, lost=True)
    for ask, loss, block in some.refused:
        price = clearing.price_to_win(_new(ask, lots[loss.lot], block, bases))
        yield told(loss, ask, block, price, lost=False)


def _displaced(some: Component, outcome: _Outcome) -> Iterator[Displaced]:
    leases = {lease.id: lease for lease in some.incumbents}
    for loser in outcome.whole.clearing.losers:
        lease = leases.get(loser.id)
        if lease is None:
            continue
        by = sorted(ask for ask, displaced in outcome.whole.owed if displaced == loser.id)
        funds = {
            name: amount
            for name, there in outcome.by_lot.items()
            if (amount := sum(there.owed.get((ask, loser.id), 0) for ask in by))
        }
        yield Displaced(
            lease=loser.id,
            compensation=sum(funds.values()),
            by=tuple(by),
            funds={} if set(funds) <= {lease.lot} else funds,
        )


# Each lot by itself


def _with_moves(
    some: Component, outcome: _Outcome, result: RoundResult, protected: set[str]
) -> RoundResult:
    """The whole result, with room made in each lot for somebody who needs no other."""
    won, lost, kept = list(result.won), list(result.lost), list(result.kept)
    lots: list[LotResult] = []
    moved: list[Moved] = []
    for lot in some.lots:
        here = outcome.by_lot[lot.name]
        before = _in_lot(lot, some, here, result, protected)
        entries = [
            e for e in some.entries if e.lot.name == lot.name and not isinstance(e.block, Joint)
        ]
        after = with_moves(lot, entries, _parts_in(lot.name, some.incumbents), before)
        served = {one.ask for one in after.won} - {one.ask for one in before.won}
        won += [one for one in after.won if one.ask in served]
        lost = [one for one in lost if one.ask not in served]
        moved += after.moved
        lots += after.lots
    gone = {one.lease for one in moved}
    return msgspec.structs.replace(
        result,
        won=tuple(won),
        lost=tuple(lost),
        kept=tuple(one for one in kept if one.lease not in gone),
        moved=tuple(moved),
        lots=tuple(lots),
    )


def _in_lot(
    lot: Lot, some: Component, here: Contest, result: RoundResult, protected: set[str]
) -> RoundResult:
    """What became of this lot's devices, and of those who wanted some."""
    leases = {part.id for part in _parts_in(lot.name, some.incumbents)}
    lost = tuple(
        loss
        for loss in result.lost
        if (lot.name in loss.missing if loss.by_lot else loss.lot == lot.name)
    )
    kept = tuple(one for one in result.kept if one.lease in leases)
    won = tuple(
        msgspec.structs.replace(
            one, devices=here.seats[one.ask].devices, places=here.seats[one.ask].places
        )
        for one in result.won
        if one.ask in here.seats
    )
    return RoundResult(
        won=won,
        lost=lost,
        kept=kept,
        displaced=tuple(one for one in result.displaced if one.lease in leases),
        lots=(summary(lot, lost, kept, protected & leases, here),),
    )
