"""
One lot in one round: clear it, see what displacing costs, place the winners.

Displacing a running lease must be paid for twice over: the pool's fund compensates it
at once, and whoever displaces it owes as much as a minimum charge. A lease for which
either cannot be found is protected: it leaves the contest, with its devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.chain import Block, weight_of
from bidplane.core.fastplacement import place_fast
from bidplane.core.market import preemption
from bidplane.core.market.clearing import Clearing, Contestant
from bidplane.core.market.exact import clear_exactly
from bidplane.core.market.fast import clear_fast
from bidplane.core.market.model import (
    Ask,
    Displaced,
    Domain,
    Incumbent,
    Kept,
    Lost,
    Lot,
    LotResult,
    RoundResult,
    Won,
    part_of,
)
from bidplane.core.market.room import Room
from bidplane.core.placement import Parting, Seat, Shelf

# A preemptor that cannot pay for what it displaces costs another clearing. After this
# many the round stops displacing anybody, which always succeeds.
CLEARINGS_MOST = 16

_UNSERVED = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)  # admitted: at or above the base price


class Admitted(NamedTuple):
    ask: Ask
    lot: Lot
    block: Block
    hold: int
    option: int = 0


class Refused(NamedTuple):
    ask: Ask
    loss: Lost
    block: Block


class Contest(NamedTuple):
    """One clearing of a lot, with the seats its winners would get."""

    clearing: Clearing
    seats: dict[str, Seat]  # by ask
    owed: dict[tuple[str, str], int]  # by (ask, lease)


def clear_lot(
    lot: Lot,
    entries: Sequence[Admitted],
    incumbents: Sequence[Incumbent],
    refused: Sequence[Refused],
) -> RoundResult:
    protected = preemption.protected_by_fund(incumbents, lot.fund)
    for _ in range(CLEARINGS_MOST):
        contest = _contest(lot, entries, incumbents, protected)
        beyond = beyond_their_preemptors(contest, entries)
        if not beyond:
            break
        protected |= beyond
    else:
        protected = {i.id for i in incumbents}
        contest = _contest(lot, entries, incumbents, protected)
    lost = _lost(lot, entries, refused, contest)
    kept = tuple(
        kept_of(
            {i.id for i in incumbents},
            protected,
            contest.clearing,
            lambda: _clear(lot, entries, incumbents),
        )
    )
    return RoundResult(
        won=tuple(_won(lot, entries, contest)),
        lost=tuple(lost),
        kept=kept,
        displaced=tuple(_displaced(incumbents, contest)),
        lots=(summary(lot, lost, kept, protected, contest),),
    )


def _contest(
    lot: Lot, entries: Sequence[Admitted], incumbents: Sequence[Incumbent], protected: set[str]
) -> Contest:
    contesting = {i.id: i for i in incumbents if i.id not in protected}
    clearing = _clear(lot, entries, contesting.values())
    asks = {entry.ask.id: entry.ask for entry in entries}
    seats = place_fast(
        shelves(lot, (contesting[c.id] for c in clearing.losers if c.id in contesting)),
        [(c.id, c.block) for c in clearing.accepted if c.id in asks],
        lot.leaves,
    )
    return Contest(clearing, seats, preemption.dues(seats, asks, contesting))


def shelves(lot: Lot, leaving_it: Iterable[Incumbent]) -> Iterator[Shelf]:
    """What winners may have: what is free, and what the leases have that leave."""
    leaving: dict[str, dict[str, tuple[str, ...]]] = {}
    parted: dict[str, list[Parting]] = {}
    for gone in leaving_it:
        if gone.share:
            for device, kind, places in gone.parts:
                parted.setdefault(device, []).append(Parting(gone.id, kind, places))
        else:
            for domain, devices in gone.seats.items():
                leaving.setdefault(domain, {})[gone.id] = devices
    for found in lot.domains:
        yield _shelf(found, leaving.get(found.name, {}), parted)


def _shelf(
    domain: Domain,
    leaving: Mapping[str, tuple[str, ...]],
    parted: Mapping[str, Sequence[Parting]],
) -> Shelf:
    parts = {device: parted[device] for device in domain.cut if device in parted}
    return Shelf(domain.name, domain.free, leaving, domain.cut, parts)


def _clear(lot: Lot, entries: Sequence[Admitted], incumbents: Iterable[Incumbent]) -> Clearing:
    incumbents = list(incumbents)
    field = [new(entry.ask, entry.block, lot.base) for entry in entries]
    field += map(running, incumbents)
    room = room_of(lot, incumbents)
    return (clear_exactly(room, field) if lot.exact else None) or clear_fast(room, field)


def room_of(lot: Lot, incumbents: Iterable[Incumbent]) -> Room:
    """What is competed for: what is free, and what the contesting leases have."""
    free = {domain.name: len(domain.free) for domain in lot.domains}
    cut: dict[str, str] = {}
    for found in lot.domains:
        for device, parts in found.cut.items():
            for kind, places in parts.items():
                free[part_of(device, kind)] = len(places)
                cut[part_of(device, kind)] = kind
    for incumbent in incumbents:
        if incumbent.share:
            for device, kind, places in incumbent.parts:
                free[part_of(device, kind)] += len(places)
        else:
            for domain, devices in incumbent.seats.items():
                free[domain] += len(devices)
    return Room(free, leaves=lot.leaves, cut=cut, chain=lot.chain)


def beyond_their_preemptors(contest: Contest, entries: Sequence[Admitted]) -> set[str]:
    """The leases whose compensation a preemptor's hold could not cover."""
    holds = {entry.ask.id: entry.hold for entry in entries}
    totals: dict[str, int] = {}
    for (ask, _), amount in contest.owed.items():
        totals[ask] = totals.get(ask, 0) + amount
    return {
        lease
        for (ask, lease), amount in contest.owed.items()
        if amount and totals[ask] > holds[ask]
    }


def _won(lot: Lot, entries: Sequence[Admitted], contest: Contest) -> Iterator[Won]:
    admitted = {entry.ask.id: entry for entry in entries}
    for winner in contest.clearing.accepted:
        if winner.id in admitted:
            entry, seat = admitted[winner.id], contest.seats[winner.id]
            yield Won(
                ask=winner.id,
                lot=lot.name,
                gpus=count_of(winner.block),
                price=entry.ask.with_premium(contest.clearing.critical_price(winner)),
                hold=entry.hold,
                minimum=sum(contest.owed[winner.id, lease] for lease in seat.taken_from),
                domain=seat.domain,
                devices=seat.devices,
                waits_for=tuple(sorted(seat.taken_from)),
                share=winner.block.share,
                places=seat.places,
                domains=seat.domains,
                parts=seat.parts,
                option=entry.option,
                weight=weight_of(winner.block, lot.leaves),
            )


def kept_of(
    running: Collection[str],
    protected: Collection[str],
    clearing: Clearing,
    open_to_all: Callable[[], Clearing],
) -> Iterator[Kept]:
    """What staying costs whom. `open_to_all`: the same, with nobody protected."""
    for winner in clearing.accepted:
        if winner.id in running:
            yield Kept(lease=winner.id, price=clearing.critical_price(winner))
    if not protected:
        return
    # A protected lease pays what staying would have cost had it been contested; its whole
    # bid, if it would have lost. So its price falls, too, when its rivals go.
    contested = open_to_all()
    for contestant in contested.accepted:
        if contestant.id in protected:
            yield Kept(lease=contestant.id, price=contested.critical_price(contestant))
    for contestant in contested.losers:
        if contestant.id in protected:
            yield Kept(lease=contestant.id, price=contestant.price)


def _displaced(incumbents: Sequence[Incumbent], contest: Contest) -> Iterator[Displaced]:
    running = {i.id for i in incumbents}
    for loser in contest.clearing.losers:
        if loser.id in running:
            by = sorted(ask for ask, lease in contest.owed if lease == loser.id)
            paid = sum(contest.owed[ask, loser.id] for ask in by)
            yield Displaced(lease=loser.id, compensation=paid, by=tuple(by))


def _lost(
    lot: Lot, entries: Sequence[Admitted], refused: Sequence[Refused], contest: Contest
) -> list[Lost]:
    clearing = contest.clearing
    admitted = {entry.ask.id: entry for entry in entries}
    lost = []
    for loser in clearing.losers:
        if loser.id in admitted:
            ask = admitted[loser.id].ask
            price = clearing.price_to_win(loser)
            lost.append(
                Lost(
                    ask=loser.id,
                    reason=BidReason.NO_FREE_BLOCK if price is None else BidReason.OUTBID,
                    lot=lot.name,
                    price=ask.price,
                    gpus=count_of(loser.block),
                    price_to_win=None if price is None else ask.with_premium(price),
                    share=loser.block.share,
                    option=admitted[loser.id].option,
                    weight=weight_of(loser.block, lot.leaves),
                    withheld=lot.withheld,
                )
            )
    for ask, loss, block in refused:
        price = clearing.price_to_win(new(ask, block, lot.base))
        to_win = None if price is None else ask.with_premium(price)
        withheld = lot.withheld if price is None else ""
        lost.append(msgspec.structs.replace(loss, price_to_win=to_win, withheld=withheld))
    return lost


def summary(
    lot: Lot,
    lost: Sequence[Lost],
    kept: Sequence[Kept],
    protected: set[str],
    contest: Contest,
) -> LotResult:
    # What a displaced lease leaves stays held until it has left.
    given = {device for seat in contest.seats.values() for device in seat.devices}
    from_free = sum(device in given for domain in lot.domains for device in domain.free)
    free = sum(len(domain.free) for domain in lot.domains)
    winners = [w for w in contest.clearing.accepted if w.id in contest.seats]
    return LotResult(
        lot=lot.name,
        base=lot.base,
        posted=contest.clearing.posted_price(lot.base, last=lot.posted),
        devices=lot.devices,
        leased=lot.devices - lot.floated - free + from_free,
        used=_used(lot) + sum(_fresh(lot, w.block, contest.seats[w.id]) for w in winners),
        unserved=unserved(lost),
        classes={
            name: price
            for name, block in classes(lot)
            if (price := contest.clearing.entry_price(block, lot.base)) is not None
        },
        stay=max((one.price for one in kept), default=0),
        protected=tuple(sorted(protected)),
        withheld=lot.withheld,
        chain=lot.chain,
    )


def unserved(lost: Iterable[Lost]) -> int:
    """The highest price that was admitted and goes without."""
    return max((loss.price for loss in lost if loss.reason in _UNSERVED), default=0)


def _used(lot: Lot) -> int:
    """How much is held before the round, by weight; what is free of a cut GPU is not."""
    total = -GPU_WEIGHT * lot.floated
    counted = [leaf for leaf in lot.leaves if not leaf.in_chain or leaf.units == 1]
    for domain in lot.domains:
        total += GPU_WEIGHT * (domain.size - len(domain.free))
        for parts in domain.cut.values():
            free = sum(leaf.weight * len(parts.get(leaf.kind, ())) for leaf in counted)
            total -= min(GPU_WEIGHT, free)
    return total


def _fresh(lot: Lot, block: Block, seat: Seat) -> int:
    """What a winner takes that nobody had; what a displaced lease leaves was counted before."""
    given = weight_of(block, lot.leaves) if block.share else GPU_WEIGHT * len(seat.devices)
    return max(0, given - sum(seat.taken_from.values()))


def classes(lot: Lot) -> Iterator[tuple[str, Block]]:
    """What a lot sells, by name: its block sizes, and the parts of a GPU."""
    largest = max((domain.size for domain in lot.domains), default=0)
    yield from ((str(size), Block(size)) for size in lot.chain if size <= largest)
    yield from ((leaf.name, Block(0, share=leaf.name)) for leaf in lot.leaves)


def count_of(block: Block) -> int:
    return block.count if block.share else block.gpus


def new(ask: Ask, block: Block, base: int) -> Contestant:
    return Contestant(ask.id, block, ask.offered, ask.weight, ask.tie, base)


def running(lease: Incumbent) -> Contestant:
    # An incumbent's reserve never evicts it, so it is never above its own bid.
    reserve = min(lease.reserve, lease.price)
    return Contestant(lease.id, lease.block, lease.price, lease.weight, lease.tie, reserve)
