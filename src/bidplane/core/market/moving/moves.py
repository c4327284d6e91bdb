"""A lot after its round, with room made in it: `defragment` decides, this is what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import weight_of
from bidplane.core.market.clearing.lot import Admitted, new, unserved
from bidplane.core.market.model import Incumbent, Lot, Moved, RoundResult, Won
from bidplane.core.market.moving.defragmentation import MovePlan, RoomMade, WaitingBlock, make_room
from bidplane.core.market.moving.repacking import whole_gpu
from bidplane.core.market.pricing.purses import Purses

_SERVABLE = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)


def with_moves(
    lot: Lot,
    entries: Sequence[Admitted],
    incumbents: Sequence[Incumbent],
    result: RoundResult,
    purses: Purses,
) -> RoundResult:
    """
    The lot's result, with one loser served after all, if it pays for the moves it takes. `purses`:
    the money that is left after the round.
    """
    if not any(incumbent.movable for incumbent in incumbents):
        return result
    admitted = {entry.ask.id: entry for entry in entries}
    leaving = {displaced.lease for displaced in result.displaced}
    free = _left_free(lot, result)
    staying = [incumbent for incumbent in incumbents if incumbent.id not in leaving]
    room_made = make_room(
        lot,
        free,
        staying,
        [
            WaitingBlock(
                new(entry.ask, entry.block, lot.base),
                entry.ask.owner,
                purses.of(entry.ask) - entry.hold,
            )
            for loss in result.lost
            if loss.reason in _SERVABLE and (entry := admitted.get(loss.ask)) is not None
        ],
        whole=lambda: whole_gpu(lot, staying, result.won),
    )
    if room_made is None:
        return result
    entry = admitted[room_made.bidder.contestant.id]
    purses.pay(entry.ask, entry.hold + room_made.fee)
    return _with_served_bid(lot, entry, result, free, room_made)


def _left_free(lot: Lot, result: RoundResult) -> dict[str, list[str]]:
    """By domain, the devices that nobody has after the round."""
    sold = {device for won in result.won for device in won.devices}
    return {
        domain.name: [device for device in sorted(domain.free) if device not in sold]
        for domain in lot.domains
    }


def _with_served_bid(
    lot: Lot,
    entry: Admitted,
    result: RoundResult,
    free: Mapping[str, Sequence[str]],
    room_made: RoomMade,
) -> RoundResult:
    plan = room_made.plan
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
        price=entry.ask.with_premium(room_made.price),
        hold=entry.hold,
        minimum=room_made.fee,
        domain=plan.domain,
        devices=tuple(seats[: plan.size]),
        waits_for=tuple(sorted(move.lease for move in moved)),
        option=entry.option,
        weight=weight_of(entry.block, lot.leaves),
    )
    lost = tuple(loss for loss in result.lost if loss.ask != won.ask)
    (summary,) = result.lots
    leased, used = _newly_leased(lot, plan, won, free)
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
        kept=tuple(lease for lease in result.kept if lease.lease not in won.waits_for),
        moved=tuple(moved),
        lots=(summary,),
    )


def _blocks_moved(plan: MovePlan, free: Mapping[str, Sequence[str]]) -> Iterator[tuple[Moved, str]]:
    """Each lease that moves, and its owner; the caller fills in `by`."""
    remaining = dict(free)
    for lease, target in plan.moves:
        devices, remaining[target] = (
            remaining[target][: lease.gpus],
            remaining[target][lease.gpus :],
        )
        yield _moved(lease, target, tuple(devices)), lease.owner


def _parts_moved(plan: MovePlan) -> Iterator[tuple[Moved, str]]:
    for (lease, target), (device, places) in zip(plan.moves, plan.homes, strict=True):
        move = _moved(lease, target, (device,))
        yield msgspec.structs.replace(move, share=lease.share, places=(places,)), lease.owner


def _moved(lease: Incumbent, target: str, devices: tuple[str, ...]) -> Moved:
    return Moved(
        lease=lease.id, by="", domain=target, devices=devices, compensation=lease.compensation
    )


def _newly_leased(
    lot: Lot, plan: MovePlan, won: Won, free: Mapping[str, Sequence[str]]
) -> tuple[int, int]:
    """The GPUs that were free before and are leased now, as a count and by weight."""
    if not plan.device:
        # What it takes beside what others leave, and what these take.
        newly_leased = sum(device in won.devices for device in free[plan.domain])
        newly_leased += sum(move.lease.gpus for move in plan.moves)
        return newly_leased, GPU_WEIGHT * newly_leased
    # The rest of the GPU that was cut, and the places that the parts go to on others.
    weights = {leaf.name: leaf.weight for leaf in lot.leaves}
    free_parts = next(
        domain.cut[plan.device] for domain in lot.domains if plan.device in domain.cut
    )
    unsold = min(
        GPU_WEIGHT, sum(weights[kind] * len(places) for kind, places in free_parts.items())
    )
    return 0, unsold + sum(weights[move.lease.share] for move in plan.moves)
