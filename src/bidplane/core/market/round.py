"""
One round: admit, route, clear each lot, see what displacing costs, place the winners.

Pure: the same input gives the same result, whatever the order of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason
from bidplane.core.market import preemption
from bidplane.core.market.clearing import Clearing, Contestant, clear
from bidplane.core.market.model import (
    Ask,
    Displaced,
    Incumbent,
    Kept,
    Lost,
    Lot,
    LotResult,
    RoundInput,
    RoundResult,
    Won,
    block_size,
)
from bidplane.core.market.room import Block
from bidplane.core.market.routing import route
from bidplane.core.placement import Seat, Shelf, place

# A preemptor that cannot pay for what it displaces costs another clearing. After this
# many the round stops displacing anybody, which always succeeds.
CLEARINGS_MOST = 16


class Admitted(NamedTuple):
    ask: Ask
    lot: Lot
    block: int
    hold: int


class Refused(NamedTuple):
    ask: Ask
    loss: Lost


def clear_round(given: RoundInput) -> RoundResult:
    admitted, refused = admit(given)
    results = [
        _clear_lot(
            lot,
            [entry for entry in admitted if entry.lot.name == lot.name],
            [incumbent for incumbent in given.incumbents if incumbent.lot == lot.name],
            [refusal for refusal in refused if refusal.loss.lot == lot.name],
        )
        for lot in sorted(given.lots, key=lambda lot: lot.name)
    ]
    lost = [refusal.loss for refusal in refused if not refusal.loss.lot]
    lost += [loss for result in results for loss in result.lost]
    return RoundResult(
        won=tuple(sorted((w for r in results for w in r.won), key=lambda w: w.ask)),
        lost=tuple(sorted(lost, key=lambda loss: loss.ask)),
        kept=tuple(sorted((k for r in results for k in r.kept), key=lambda k: k.lease)),
        displaced=tuple(sorted((d for r in results for d in r.displaced), key=lambda d: d.lease)),
        lots=tuple(lot for result in results for lot in result.lots),
    )


def admit(given: RoundInput) -> tuple[list[Admitted], list[Refused]]:
    """
    Each ask's lot, block and hold; or why it takes no part.

    The wallet is promised to an agent's asks from the highest key down: an ask is never
    admitted on credits that another of the same agent may need this round.
    """
    lots = {lot.name: lot for lot in given.lots}
    available = dict(given.available)
    admitted: list[Admitted] = []
    refused: list[Refused] = []
    for ask in sorted(given.asks, key=lambda a: (-a.price * a.weight, a.tie, a.id)):
        block = block_size(ask.gpus)
        lot = _lot_for(ask, block, lots)
        if isinstance(lot, BidReason) or block is None:
            reason = lot if isinstance(lot, BidReason) else BidReason.LARGER_THAN_EVERY_DOMAIN
            loss = Lost(ask=ask.id, reason=reason, price=ask.price, gpus=block or 0)
            refused.append(Refused(ask, loss))
            continue
        below = BidReason.BELOW_RESERVE
        loss = Lost(ask=ask.id, reason=below, lot=lot.name, price=ask.price, gpus=block)
        hold = ask.hold.get(lot.name, 0)
        left = available.get(ask.agent, 0) - hold
        if ask.price < lot.base:
            refused.append(Refused(ask, loss))
        elif left < 0:
            poor = msgspec.structs.replace(loss, reason=BidReason.WALLET_TOO_SMALL, short=-left)
            refused.append(Refused(ask, poor))
        else:
            available[ask.agent] = left
            admitted.append(Admitted(ask, lot, block, hold))
    return admitted, refused


def _lot_for(ask: Ask, block: int | None, lots: Mapping[str, Lot]) -> Lot | BidReason:
    stocked = [lot for lot in lots.values() if lot.devices]
    if ask.lot:
        if ask.lot not in lots:
            return BidReason.NO_SUCH_POOL
        stocked = [lot for lot in stocked if lot.name == ask.lot]
    if not stocked:
        return BidReason.NO_DEVICES
    if block is None:
        return BidReason.LARGER_THAN_EVERY_DOMAIN
    return route(ask, block, stocked) or BidReason.LARGER_THAN_EVERY_DOMAIN


class _Contest(NamedTuple):
    """One clearing of a lot, with the seats its winners would get."""

    clearing: Clearing
    seats: dict[str, Seat]
    owed: dict[tuple[str, str], int]  # by (ask, lease)


def _clear_lot(
    lot: Lot,
    entries: Sequence[Admitted],
    incumbents: Sequence[Incumbent],
    refused: Sequence[Refused],
) -> RoundResult:
    protected = preemption.protected_by_fund(incumbents, lot.fund)
    for _ in range(CLEARINGS_MOST):
        contest = _contest(lot, entries, incumbents, protected)
        beyond = _beyond_their_preemptors(contest, entries)
        if not beyond:
            break
        protected |= beyond
    else:
        protected = {i.id for i in incumbents}
        contest = _contest(lot, entries, incumbents, protected)
    return _result(lot, entries, incumbents, refused, protected, contest)


def _contest(
    lot: Lot, entries: Sequence[Admitted], incumbents: Sequence[Incumbent], protected: set[str]
) -> _Contest:
    contesting = {i.id: i for i in incumbents if i.id not in protected}
    asks = {entry.ask.id: entry for entry in entries}
    free = {domain.name: len(domain.free) for domain in lot.domains}
    for incumbent in contesting.values():
        free[incumbent.domain] += incumbent.gpus
    clearing = clear(
        free,
        [_new(e.ask, e.block, lot.base) for e in entries]
        + [_running(i) for i in contesting.values()],
    )
    leaving: dict[str, dict[str, tuple[str, ...]]] = {}
    for loser, _ in clearing.rejected:
        if loser.id in contesting:
            gone = contesting[loser.id]
            leaving.setdefault(gone.domain, {})[gone.id] = gone.devices
    seats = place(
        (Shelf(d.name, d.free, leaving.get(d.name, {})) for d in lot.domains),
        [(c.id, c.block.size) for c in clearing.accepted if c.id in asks],
    )
    owed = preemption.dues(seats, {e.ask.id: e.ask for e in entries}, contesting)
    return _Contest(clearing, seats, owed)


def _beyond_their_preemptors(contest: _Contest, entries: Sequence[Admitted]) -> set[str]:
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


def _result(
    lot: Lot,
    entries: Sequence[Admitted],
    incumbents: Sequence[Incumbent],
    refused: Sequence[Refused],
    protected: set[str],
    contest: _Contest,
) -> RoundResult:
    clearing, seats, owed = contest
    asks = {entry.ask.id: entry for entry in entries}
    won, kept, lost, displaced = [], [], [], []
    for winner in clearing.accepted:
        price = clearing.critical_price(winner)
        if winner.id in asks:
            seat = seats[winner.id]
            won.append(
                Won(
                    ask=winner.id,
                    lot=lot.name,
                    gpus=winner.block.size,
                    price=price,
                    hold=asks[winner.id].hold,
                    minimum=sum(owed[winner.id, lease] for lease in seat.taken_from),
                    domain=seat.domain,
                    devices=seat.devices,
                    waits_for=tuple(sorted(seat.taken_from)),
                )
            )
        else:
            kept.append(Kept(lease=winner.id, price=price))
    for loser, _ in clearing.rejected:
        if loser.id in asks:
            to_win = clearing.price_to_win(loser)
            lost.append(
                Lost(
                    ask=loser.id,
                    reason=BidReason.NO_FREE_BLOCK if to_win is None else BidReason.OUTBID,
                    lot=lot.name,
                    price=loser.price,
                    gpus=loser.block.size,
                    price_to_win=to_win,
                )
            )
        else:
            by = sorted(ask for ask, seat in seats.items() if loser.id in seat.taken_from)
            paid = sum(owed[ask, loser.id] for ask in by)
            displaced.append(Displaced(lease=loser.id, compensation=paid, by=tuple(by)))
    for ask, loss in refused:
        to_win = clearing.price_to_win(_new(ask, loss.gpus, lot.base))
        lost.append(msgspec.structs.replace(loss, price_to_win=to_win))
    # What a displaced lease leaves stays held until it has left.
    from_free = sum(len(s.devices) - sum(s.taken_from.values()) for s in seats.values())
    leased = lot.devices - sum(len(domain.free) for domain in lot.domains) + from_free
    summary = LotResult(
        lot=lot.name,
        base=lot.base,
        posted=clearing.posted_price(lot.base, last=lot.posted),
        devices=lot.devices,
        leased=leased,
        unserved=max((loss.price for loss in lost if loss.reason in _UNSERVED), default=0),
        protected=tuple(sorted(protected)),
    )
    return RoundResult(
        won=tuple(won),
        lost=tuple(lost),
        kept=tuple(kept),
        displaced=tuple(displaced),
        lots=(summary,),
    )


_UNSERVED = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)  # admitted: at or above the base price


def _new(ask: Ask, block: int, base: int) -> Contestant:
    return Contestant(ask.id, Block(block), ask.price, ask.weight, ask.tie, base)


def _running(lease: Incumbent) -> Contestant:
    block = Block(lease.gpus, lease.domain)
    # An incumbent's reserve never evicts it, so it is never above its own bid.
    reserve = min(lease.reserve, lease.price)
    return Contestant(lease.id, block, lease.price, lease.weight, lease.tie, reserve)
