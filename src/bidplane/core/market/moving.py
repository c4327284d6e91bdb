"""A lot after its round, with room made in it: `defragment` decides, this is what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.chain import weight_of
from bidplane.core.market.defragment import Bidder, Made, Plan, make_room
from bidplane.core.market.lot import Admitted, new, unserved
from bidplane.core.market.model import Incumbent, Lot, Moved, RoundResult, Won
from bidplane.core.market.repacking import whole_gpu

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
    staying = [incumbent for incumbent in incumbents if incumbent.id not in leaving]
    made = make_room(
        lot,
        free,
        staying,
        [
            Bidder(new(entry.ask, entry.block, lot.base), entry.ask.owner, entry.hold)
            for loss in result.lost
            if loss.reason in _SERVABLE and (entry := admitted.get(loss.ask)) is not None
        ],
        whole=lambda: whole_gpu(lot, staying, result.won),
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
    plan = made.plan
    moved = [
        msgspec.structs.replace(
            move, by=entry.ask.id, compensation=move.compensation if owner != entry.ask.owner else 0
        )
        for move, owner in (_parts_moved(plan) if plan.device else _blocks_moved(plan, free))
    ]
    seats = [*free[plan.domain], *(d for move in plan.moves for d in move.lease.devices)]
    seats = [plan.device] if plan.device else seats
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
    (summary,) = result.lots
    leased, used = _taken(lot, plan, won, free)
    summary = msgspec.structs.replace(
        summary,
        leased=summary.leased + leased,
        used=summary.used + used,
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


def _blocks_moved(plan: Plan, free: Mapping[str, Sequence[str]]) -> Iterator[tuple[Moved, str]]:
    """Each lease that moves, and its owner; `by` is filled in by whoever knows."""
    left = dict(free)
    for lease, target in plan.moves:
        devices, left[target] = left[target][: lease.gpus], left[target][lease.gpus :]
        yield _moved(lease, target, tuple(devices)), lease.owner


def _parts_moved(plan: Plan) -> Iterator[tuple[Moved, str]]:
    for (lease, target), (device, places) in zip(plan.moves, plan.homes, strict=True):
        move = _moved(lease, target, (device,))
        yield msgspec.structs.replace(move, share=lease.share, places=(places,)), lease.owner


def _moved(lease: Incumbent, target: str, devices: tuple[str, ...]) -> Moved:
    return Moved(
        lease=lease.id, by="", domain=target, devices=devices, compensation=lease.compensation
    )


def _taken(lot: Lot, plan: Plan, won: Won, free: Mapping[str, Sequence[str]]) -> tuple[int, int]:
    """Of what was free before: how many GPUs are not now, and how much by weight."""
    if not plan.device:
        # What it takes beside what others leave, and what these take.
        fresh = sum(device in won.devices for device in free[plan.domain])
        fresh += sum(move.lease.gpus for move in plan.moves)
        return fresh, GPU_WEIGHT * fresh
    # The rest of the GPU that was cut, and the places that the parts go to on others.
    weights = {leaf.name: leaf.weight for leaf in lot.leaves}
    rest = next(domain.cut[plan.device] for domain in lot.domains if plan.device in domain.cut)
    unsold = min(GPU_WEIGHT, sum(weights[kind] * len(places) for kind, places in rest.items()))
    return 0, unsold + sum(weights[move.lease.share] for move in plan.moves)
