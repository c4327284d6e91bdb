"""A lot after its round, with room made in it: `defragment` decides, this is what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.chain import weight_of
from bidplane.core.market.defragment import Bidder, Made, make_room
from bidplane.core.market.lot import Admitted, new, unserved
from bidplane.core.market.model import Incumbent, Lot, Moved, RoundResult, Won

_SERVABLE = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)


def with_moves(
    lot: Lot,
    entries: Sequence[Admitted],
    incumbents: Sequence[Incumbent],
    result: RoundResult,
) -> RoundResult:
    """The lot's result, with one loser served after all, if it pays for the moves it takes."""
    if not any(incumbent.movable for incumbent in incumbents):
        return result
    admitted = {entry.ask.id: entry for entry in entries}
    leaving = {gone.lease for gone in result.displaced}
    free = _left_free(lot, result)
    made = make_room(
        lot,
        free,
        [incumbent for incumbent in incumbents if incumbent.id not in leaving],
        [
            Bidder(new(entry.ask, entry.block, lot.base), entry.ask.owner, entry.hold)
            for loss in result.lost
            if loss.reason in _SERVABLE and (entry := admitted.get(loss.ask)) is not None
        ],
    )
    if made is None:
        return result
    return _served(lot, admitted[made.bidder.contestant.id], result, free, made)


def _left_free(lot: Lot, result: RoundResult) -> dict[str, list[str]]:
    """By domain, what nobody has after the round."""
    given = {device for won in result.won for device in won.devices}
    return {
        domain.name: [device for device in sorted(domain.free) if device not in given]
        for domain in lot.domains
    }


def _served(
    lot: Lot,
    entry: Admitted,
    result: RoundResult,
    free: Mapping[str, Sequence[str]],
    made: Made,
) -> RoundResult:
    plan, left = made.plan, dict(free)
    seats = list(free[plan.domain])
    moved = []
    for lease, target in plan.moves:
        devices, left[target] = left[target][: lease.gpus], left[target][lease.gpus :]
        seats += lease.devices
        moved.append(
            Moved(
                lease=lease.id,
                by=entry.ask.id,
                domain=target,
                devices=tuple(devices),
                compensation=lease.compensation if lease.owner != made.bidder.owner else 0,
            )
        )
    won = Won(
        ask=entry.ask.id,
        lot=lot.name,
        gpus=plan.size,
        price=entry.ask.with_premium(made.price),
        hold=entry.hold,
        minimum=made.fee,
        domain=plan.domain,
        devices=tuple(seats[: plan.size]),
        waits_for=tuple(sorted(move.lease for move in moved)),
        option=entry.option,
        weight=weight_of(entry.block, lot.leaves),
    )
    lost = tuple(loss for loss in result.lost if loss.ask != won.ask)
    # What was free and is not: what it takes beside what others leave, and what these take.
    fresh = sum(device in won.devices for device in free[plan.domain])
    fresh += sum(len(move.devices) for move in moved)
    (summary,) = result.lots
    summary = msgspec.structs.replace(
        summary,
        leased=summary.leased + fresh,
        used=summary.used + GPU_WEIGHT * fresh,
        unserved=unserved(lost),
    )
    return msgspec.structs.replace(
        result,
        won=(*result.won, won),
        lost=lost,
        kept=tuple(one for one in result.kept if one.lease not in won.waits_for),
        moved=tuple(moved),
        lots=(summary,),
    )
