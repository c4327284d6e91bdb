"""
One lot in one round: clear it, see who pays for whom it displaces, place the winners.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.bulkplacement import place_fast
from bidplane.core.devices.chain import UNIT_WEIGHT, Block, weight_of
from bidplane.core.devices.placement import Parting, Seat, Shelf, part_of
from bidplane.core.market.clearing import liability
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.columns import clear_fast
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.exact import clear_exactly
from bidplane.core.market.clearing.greedy import Clearing
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
    units_at,
)

_SHOWN_PARTS = 8  # of one GPU: smaller ones are sold, and their prices are not told
_UNSERVED = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)  # admitted: at or above the base price


class Admitted(NamedTuple):
    ask: Ask
    lot: Lot
    block: Block
    hold: int
    option: int = 0


class RefusedBid(NamedTuple):
    ask: Ask
    loss: Lost
    block: Block


class Contest:
    """One clearing of a lot, with the seats its winners get, and what they owe."""

    def __init__(
        self, clearing: Clearing, seats: dict[str, Seat], owed: dict[tuple[str, str], int]
    ) -> None:
        """`seats`: by ask. `owed`: by (ask, lease)."""
        self.clearing = clearing
        self.seats = seats
        self.owed = owed
        self._owed_by: dict[str, int] = {}
        self._takers: dict[str, set[str]] = {}
        for (ask, lease), amount in owed.items():
            self._owed_by[ask] = self._owed_by.get(ask, 0) + amount
            self._takers.setdefault(lease, set()).add(ask)
        for ask, seat in seats.items():
            for lease in seat.taken_from:
                self._takers.setdefault(lease, set()).add(ask)

    def owed_by(self, ask: str) -> int:
        return self._owed_by.get(ask, 0)

    def takers_of(self, lease: str) -> tuple[str, ...]:
        """The asks that pay for a displaced lease, or get some of its devices."""
        return tuple(sorted(self._takers.get(lease, ())))


def result_of(
    lot: Lot,
    entries: Sequence[Admitted],
    incumbents: Sequence[Incumbent],
    refused: Sequence[RefusedBid],
    contest: Contest,
) -> RoundResult:
    """The result of a lot that was cleared, with all its prices."""
    lost = _lost(lot, entries, refused, contest)
    staying = tuple(kept_of({i.id for i in incumbents}, contest.clearing))
    return RoundResult(
        won=tuple(_won(lot, entries, contest)),
        lost=tuple(lost),
        kept=staying,
        displaced=tuple(_displaced(incumbents, contest)),
        lots=(summary(lot, lost, staying, contest),),
    )


def contest_of(lot: Lot, entries: Sequence[Admitted], incumbents: Sequence[Incumbent]) -> Contest:
    """Clear a lot: who wins, with which seats, and what each owes."""
    leases = {lease.id: lease for lease in incumbents}
    clearing = _clear(lot, entries, incumbents)
    asks = {entry.ask.id: entry.ask for entry in entries}
    seats = place_fast(
        shelves(lot, (leases[c.id] for c in clearing.losers if c.id in leases)),
        [(c.id, c.block) for c in clearing.accepted if c.id in asks],
        lot.leaves,
    )
    return Contest(clearing, seats, liability.dues(clearing.takers, asks, leases))


def shelves(lot: Lot, leaving_it: Iterable[Incumbent]) -> Iterator[Shelf]:
    """
    The devices of each domain that winners may have: free ones, and those of the leases that leave.
    """
    leaving: dict[str, dict[str, tuple[str, ...]]] = {}
    parted: dict[str, list[Parting]] = {}
    for lease in leaving_it:
        if lease.share:
            for device, kind, places in lease.parts:
                parted.setdefault(device, []).append(Parting(lease.id, kind, places))
        else:
            for name, devices in lease.seats.items():
                leaving.setdefault(name, {})[lease.id] = devices
    for domain in lot.domains:
        yield _shelf(domain, leaving.get(domain.name, {}), parted)


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
    """The capacity that is competed for: free devices, and those of the contesting leases."""
    free = {domain.name: len(domain.free) for domain in lot.domains}
    cut: dict[str, str] = {}
    for lot_domain in lot.domains:
        for device, parts in lot_domain.cut.items():
            for kind, places in parts.items():
                free[part_of(device, kind)] = units_at(kind, places)
                cut[part_of(device, kind)] = kind
    for incumbent in incumbents:
        if incumbent.share:
            for device, kind, places in incumbent.parts:
                free[part_of(device, kind)] += units_at(kind, places)
        else:
            for domain, devices in incumbent.seats.items():
                free[domain] += len(devices)
    return Room(free, leaves=lot.leaves, cut=cut, chain=lot.chain)


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
                minimum=contest.owed_by(winner.id),
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


def kept_of(running: Collection[str], clearing: Clearing) -> Iterator[Kept]:
    """The leases that stay, each with the price of staying."""
    for winner in clearing.accepted:
        if winner.id in running:
            yield Kept(lease=winner.id, price=clearing.critical_price(winner))


def _displaced(incumbents: Sequence[Incumbent], contest: Contest) -> Iterator[Displaced]:
    running = {i.id for i in incumbents}
    for loser in contest.clearing.losers:
        if loser.id in running:
            by = contest.takers_of(loser.id)
            paid = sum(contest.owed.get((ask, loser.id), 0) for ask in by)
            yield Displaced(lease=loser.id, compensation=paid, by=by)


def _lost(
    lot: Lot, entries: Sequence[Admitted], refused: Sequence[RefusedBid], contest: Contest
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
                    reserved=lot.in_the_way_of(ask.share) if price is None else "",
                    own_leases=() if price is not None else clearing.own_in_the_way(loser),
                )
            )
    for ask, loss, block in refused:
        outsider = new(ask, block, lot.base)
        price = clearing.price_to_win(outsider)
        lost.append(
            msgspec.structs.replace(
                loss,
                price_to_win=None if price is None else ask.with_premium(price),
                withheld=lot.withheld if price is None else "",
                reserved=lot.in_the_way_of(ask.share) if price is None else "",
                own_leases=() if price is not None else clearing.own_in_the_way(outsider),
            )
        )
    return lost


def summary(
    lot: Lot,
    lost: Sequence[Lost],
    staying: Sequence[Kept],
    contest: Contest,
) -> LotResult:
    # Devices of a displaced lease count as leased until it has left.
    sold = {device for seat in contest.seats.values() for device in seat.devices}
    from_free = sum(device in sold for domain in lot.domains for device in domain.free)
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
        stay=max((lease.price for lease in staying), default=0),
        withheld=lot.withheld,
        chain=lot.chain,
    )


def unserved(lost: Iterable[Lost]) -> int:
    """The highest price that was admitted and goes without."""
    return max((loss.price for loss in lost if loss.reason in _UNSERVED), default=0)


def _used(lot: Lot) -> int:
    """The weight that is in use before the round; the free parts of a cut GPU do not count."""
    total = -GPU_WEIGHT * lot.floated
    weights = {leaf.kind: UNIT_WEIGHT if leaf.in_chain else leaf.weight for leaf in lot.leaves}
    for domain in lot.domains:
        total += GPU_WEIGHT * (domain.size - len(domain.free))
        for parts in domain.cut.values():
            free = sum(
                weights[kind] * units_at(kind, places)
                for kind, places in parts.items()
                if kind in weights
            )
            total -= min(GPU_WEIGHT, free)
    return total


def _fresh(lot: Lot, block: Block, seat: Seat) -> int:
    """
    The weight that a winner adds to the use; devices of a displaced lease were counted before.
    """
    weight = weight_of(block, lot.leaves) if block.share else GPU_WEIGHT * len(seat.devices)
    return max(0, weight - sum(seat.taken_from.values()))


def classes(lot: Lot) -> Iterator[tuple[str, Block]]:
    """The shapes that a lot sells, by name: its block sizes, and the shares of a GPU."""
    largest = max((domain.size for domain in lot.domains), default=0)
    yield from ((str(size), Block(size)) for size in lot.chain if size <= largest)
    yield from (
        (leaf.name, Block(0, share=leaf.name))
        for leaf in lot.leaves
        if leaf.per_gpu <= _SHOWN_PARTS
    )


def count_of(block: Block) -> int:
    return block.count if block.share else block.gpus


def new(ask: Ask, block: Block, base: int) -> Contestant:
    return Contestant(
        ask.id, block, ask.offered, ask.weight, ask.tie, base, ask.agent, urgent=ask.urgent
    )


def running(lease: Incumbent) -> Contestant:
    return Contestant(
        lease.id,
        lease.block,
        lease.price,
        lease.weight,
        lease.tie,
        # An incumbent's reserve never evicts it, so it is never above its own bid.
        min(lease.reserve, lease.price),
        lease.agent,
        is_lease=True,
        urgent=lease.urgent,
    )
