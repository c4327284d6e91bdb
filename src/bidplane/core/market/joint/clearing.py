"""
Lots that somebody needs together, in one round: cleared as one, each seen by itself after.

In a component (`components`) all contestants are taken in the order of their keys, each
accepted if it fits in every lot it needs (`rooms`). Critical prices are the general ones of
`clearing`. A lease of several lots is kept in all of them or displaced from all; its
compensation passes through each lot's fund by its part there.

Whoever is in one lot only is treated there as in `lot`, and room is made there as in any lot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason
from bidplane.core.devices.bulkplacement import place_fast
from bidplane.core.devices.chain import Block, weight_of
from bidplane.core.devices.placement import Seat, joined, take_pinned
from bidplane.core.market.clearing import liability
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.contested import clear
from bidplane.core.market.clearing.exact import clear_exactly
from bidplane.core.market.clearing.greedy import Clearing
from bidplane.core.market.clearing.lot import (
    Contest,
    count_of,
    kept_of,
    new,
    room_of,
    running,
    shelves,
    summary,
)
from bidplane.core.market.joint.capacity import Joint, Rooms, in_lots, joint, reserve_of
from bidplane.core.market.joint.components import Component
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
from bidplane.core.market.moving.moves import with_moves
from bidplane.core.market.pricing.purses import Purses


class _Outcome(NamedTuple):
    rooms: Rooms  # what was competed for
    whole: Contest  # of all lots: each ask's seats, and what it owes in all
    by_lot: dict[str, Contest]  # what it has there, and owes to that lot's fund


class Joined:
    """A component, cleared, before room is made in it; prices are found when asked for."""

    def __init__(self, component: Component) -> None:
        self.component = component
        self._outcome = _contest(component)

    @property
    def owed(self) -> dict[str, int]:
        """By winner, the compensation that it owes."""
        whole = self._outcome.whole
        return {ask: whole.owed_by(ask) for ask in whole.seats}

    @cached_property
    def result(self) -> RoundResult:
        component, outcome = self.component, self._outcome
        clearing = outcome.whole.clearing
        return RoundResult(
            won=tuple(_won(component, outcome)),
            lost=tuple(_lost(component, outcome.rooms, clearing)),
            kept=tuple(kept_of({lease.id for lease in component.incumbents}, clearing)),
            displaced=tuple(_displaced(component, outcome)),
        )

    def with_moves(self, purses: Purses) -> RoundResult:
        return _with_moves(self.component, self._outcome, self.result, purses)


def _parts_in(lot: str, leases: Iterable[Incumbent]) -> list[Incumbent]:
    """The parts of the leases that are in `lot`."""
    return [part for lease in leases for part in (lease, *lease.also) if part.lot == lot]


# Who wins


def _clear(component: Component, incumbents: Sequence[Incumbent]) -> tuple[Rooms, Clearing]:
    rooms = Rooms(
        {lot.name: room_of(lot, _parts_in(lot.name, incumbents)) for lot in component.lots}
    )
    bases = {lot.name: lot.base for lot in component.lots}
    field = [_new(entry.ask, entry.lot, entry.block, bases) for entry in component.entries]
    field += map(_running, incumbents)
    best = clear_exactly(rooms, field) if all(lot.exact for lot in component.lots) else None
    return rooms, best or clear(rooms, field)


def _new(ask: Ask, lot: Lot, block: Block, bases: Mapping[str, int]) -> Contestant:
    over = block if isinstance(block, Joint) else joint({lot.name: block})
    return new(ask, over, reserve_of(over, bases))


def _running(lease: Incumbent) -> Contestant:
    parts = {part.lot: part.block for part in (lease, *lease.also)}
    return running(lease)._replace(block=joint(parts))


def _contest(component: Component) -> _Outcome:
    leases = {lease.id: lease for lease in component.incumbents}
    rooms, clearing = _clear(component, component.incumbents)
    asks = {entry.ask.id: entry.ask for entry in component.entries}
    displaced = [leases[c.id] for c in clearing.losers if c.id in leases]
    views = {lot.name: _InLot(clearing, rooms, lot.name) for lot in component.lots}
    seats = {
        lot.name: _seats(lot, views[lot.name].accepted, displaced, asks) for lot in component.lots
    }
    all_seats = {
        id: _beside([lot_seats[id] for lot_seats in seats.values() if id in lot_seats])
        for id in dict.fromkeys(id for lot_seats in seats.values() for id in lot_seats)
    }
    # By lot, what its fund passes on: so that each gets what it pays, to the last micro-credit.
    owed = {
        lot.name: liability.dues(
            clearing.takers, asks, {i.id: _owed_by(lot.name, i) for i in displaced}
        )
        for lot in component.lots
    }
    total: dict[tuple[str, str], int] = {}
    for dues in owed.values():
        for key, amount in dues.items():
            total[key] = total.get(key, 0) + amount
    by_lot = {name: Contest(views[name], seats[name], owed[name]) for name in seats}
    return _Outcome(rooms, Contest(clearing, all_seats, total), by_lot)


class _InLot(Clearing):
    """
    A joint clearing as one lot sees it: the part of it that each winner has, and the price of one
    more.
    """

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
    lot: Lot,
    accepted: Iterable[Contestant],
    displaced: Iterable[Incumbent],
    asks: Mapping[str, Ask],
) -> dict[str, Seat]:
    winners = [(c.id, c.block) for c in accepted if c.id in asks]
    pins_gpus = [(id, block) for id, block in winners if block.is_pinned and not block.share]
    remaining, pinned = take_pinned(shelves(lot, _parts_in(lot.name, displaced)), pins_gpus)
    placed = place_fast(remaining, [w for w in winners if w[0] not in pinned], lot.leaves)
    return {**pinned, **placed}


def _beside(seats: Sequence[Seat]) -> Seat:
    """The seats of one ask in several lots, joined block after block."""
    if len(seats) == 1:
        return seats[0]
    combined = joined(seats)
    return msgspec.structs.replace(
        combined,
        domains=tuple(name for seat in seats for name in seat.domains or (seat.domain,)),
        parts=tuple(n for seat in seats for n in seat.parts or (len(seat.devices),)),
    )


def _owed_by(lot: str, lease: Incumbent) -> Incumbent:
    """The lease, with what this lot's fund owes it."""
    owed = sum(part.compensation for part in _parts_in(lot, [lease]))
    return msgspec.structs.replace(lease, compensation=owed)


# What becomes of each


def _won(component: Component, outcome: _Outcome) -> Iterator[Won]:
    admitted = {entry.ask.id: entry for entry in component.entries}
    lots = {lot.name: lot for lot in component.lots}
    for winner in outcome.whole.clearing.accepted:
        entry = admitted.get(winner.id)
        if entry is None:
            continue
        seat, block = outcome.whole.seats[winner.id], entry.block
        funds = {
            name: amount
            for name, contest in outcome.by_lot.items()
            if (amount := contest.owed_by(winner.id))
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
    """The award with its devices ordered by set; each set is in one machine."""
    won = msgspec.structs.replace(won, by_lot=block.by_lot)
    if not block.sets:
        return won
    stacks: dict[tuple[str, str], list[str]] = {}
    for lot, lot_block in block.lots:
        seat = outcome.by_lot[lot].seats[won.ask]
        devices = iter(seat.devices)
        for domain, gpus in lot_block.seats:
            stacks[lot, domain] = [next(devices) for _ in range(gpus)]
    sets = []
    for places in block.sets:
        devices_of_set = []
        for lot, domain, gpus in places:
            stack = stacks[lot, domain]
            devices_of_set += stack[:gpus]
            del stack[:gpus]
        sets.append(devices_of_set)
    several = len(sets) > 1
    return msgspec.structs.replace(
        won,
        domain=block.sets[0][0].domain,
        devices=tuple(device for devices_of_set in sets for device in devices_of_set),
        domains=tuple(places[0].domain for places in block.sets) if several else (),
        parts=tuple(map(len, sets)) if several else (),
    )


def _lost(component: Component, rooms: Rooms, clearing: Clearing) -> Iterator[Lost]:
    bases = {lot.name: lot.base for lot in component.lots}
    lots = {lot.name: lot for lot in component.lots}
    admitted = {entry.ask.id: entry for entry in component.entries}

    def explained(loss: Lost, ask: Ask, block: Block, price: int | None, *, lost: bool) -> Lost:
        remaining = rooms if price is None else clearing.room
        over = block if isinstance(block, Joint) else joint({loss.lot: block})
        missing = tuple(
            lot
            for lot, part in over.lots
            if isinstance(remaining, Rooms) and not remaining.lots[lot].fits(part)
        )
        short_lots = missing if isinstance(block, Joint) else (loss.lot,)
        withheld = [lots[lot].withheld for lot in short_lots if lots[lot].withheld]
        loss = msgspec.structs.replace(
            loss,
            price_to_win=None if price is None else ask.with_premium(price),
            withheld="; ".join(withheld) if lost or price is None else "",
            reserved="; ".join(filter(None, (lots[n].in_the_way_of(ask.share) for n in short_lots)))
            if price is None
            else "",
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
            own_leases=clearing.own_in_the_way(loser),
        )
        yield explained(loss, entry.ask, entry.block, price, lost=True)
    for ask, loss, block in component.refused:
        outsider = _new(ask, lots[loss.lot], block, bases)
        price = clearing.price_to_win(outsider)
        own = clearing.own_in_the_way(outsider)
        loss = msgspec.structs.replace(loss, own_leases=own)
        yield explained(loss, ask, block, price, lost=False)


def _displaced(component: Component, outcome: _Outcome) -> Iterator[Displaced]:
    leases = {lease.id: lease for lease in component.incumbents}
    for loser in outcome.whole.clearing.losers:
        lease = leases.get(loser.id)
        if lease is None:
            continue
        by = outcome.whole.takers_of(loser.id)
        funds = {
            name: amount
            for name, contest in outcome.by_lot.items()
            if (amount := sum(contest.owed.get((ask, loser.id), 0) for ask in by))
        }
        yield Displaced(
            lease=loser.id,
            compensation=sum(funds.values()),
            by=by,
            funds={} if set(funds) <= {lease.lot} else funds,
        )


# Each lot by itself


def _with_moves(
    component: Component, outcome: _Outcome, result: RoundResult, purses: Purses
) -> RoundResult:
    """The whole result, with room made in each lot for somebody who needs no other."""
    won, lost, staying = list(result.won), list(result.lost), list(result.kept)
    lots: list[LotResult] = []
    moved: list[Moved] = []
    for lot in component.lots:
        contest = outcome.by_lot[lot.name]
        before = _in_lot(lot, component, contest, result)
        entries = [
            e
            for e in component.entries
            if e.lot.name == lot.name and not isinstance(e.block, Joint)
        ]
        after = with_moves(lot, entries, _parts_in(lot.name, component.incumbents), before, purses)
        served = {entry.ask for entry in after.won} - {entry.ask for entry in before.won}
        won += [entry for entry in after.won if entry.ask in served]
        lost = [entry for entry in lost if entry.ask not in served]
        moved += after.moved
        lots += after.lots
    moved_ids = {entry.lease for entry in moved}
    return msgspec.structs.replace(
        result,
        won=tuple(won),
        lost=tuple(lost),
        kept=tuple(entry for entry in staying if entry.lease not in moved_ids),
        moved=tuple(moved),
        lots=tuple(lots),
    )


def _in_lot(lot: Lot, component: Component, contest: Contest, result: RoundResult) -> RoundResult:
    """The part of the result that concerns this lot: its devices, and the asks for them."""
    leases = {part.id for part in _parts_in(lot.name, component.incumbents)}
    lost = tuple(
        loss
        for loss in result.lost
        if (lot.name in loss.missing if loss.by_lot else loss.lot == lot.name)
    )
    staying = tuple(entry for entry in result.kept if entry.lease in leases)
    won = tuple(
        msgspec.structs.replace(
            entry, devices=contest.seats[entry.ask].devices, places=contest.seats[entry.ask].places
        )
        for entry in result.won
        if entry.ask in contest.seats
    )
    return RoundResult(
        won=won,
        lost=lost,
        kept=staying,
        displaced=tuple(entry for entry in result.displaced if entry.lease in leases),
        lots=(summary(lot, lost, staying, contest),),
    )
