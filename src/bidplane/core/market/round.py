"""
One round: admit, route, then clear each lot by itself, and make room in what it left. Lots that
somebody needs together are cleared together. Winners that cannot pay are left out, and their
lots cleared again.

Pure: the same input gives the same result, whatever the order of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import CHAIN, Block
from bidplane.core.market.clearing.lot import Admitted, RefusedBid
from bidplane.core.market.joint.asks import Joiner
from bidplane.core.market.joint.capacity import Joint
from bidplane.core.market.joint.components import components
from bidplane.core.market.model import (
    Ask,
    Kept,
    Lot,
    RoundInput,
    RoundResult,
)
from bidplane.core.market.pricing.affording import cleared_and_paid, loss_of, rank_of, with_money
from bidplane.core.market.pricing.purses import Purses
from bidplane.core.market.routing import Router


def clear_round(round_input: RoundInput) -> RoundResult:
    pinned = [incumbent for incumbent in round_input.incumbents if incumbent.pinned]
    if pinned:
        contested = tuple(i for i in round_input.incumbents if not i.pinned)
        round_input = msgspec.structs.replace(round_input, incumbents=contested)
    admitted, refused = admit(round_input)
    cleared, purses = cleared_and_paid(components(round_input, admitted, refused), round_input)
    results = [component_result.with_moves(purses) for component_result in cleared]
    lost = [refusal.loss for refusal in refused if not refusal.loss.lot]
    lost += [
        loss
        for component_result, result in zip(cleared, results, strict=True)
        for loss in with_money(component_result.component, result.lost, purses)
    ]
    # Nobody could have what it has: the least it could have bid and kept it is its reserve.
    staying = [Kept(lease=i.id, price=min(i.reserve, i.price)) for i in pinned]
    staying += [lease for result in results for lease in result.kept]
    return RoundResult(
        won=tuple(sorted((w for r in results for w in r.won), key=lambda w: w.ask)),
        lost=tuple(sorted(lost, key=lambda loss: loss.ask)),
        kept=tuple(sorted(staying, key=lambda k: k.lease)),
        displaced=tuple(sorted((d for r in results for d in r.displaced), key=lambda d: d.lease)),
        lots=tuple(sorted((lot for r in results for lot in r.lots), key=lambda lot: lot.lot)),
        moved=tuple(sorted((m for r in results for m in r.moved), key=lambda m: m.lease)),
        gpu_weight=GPU_WEIGHT,
    )


def admit(round_input: RoundInput) -> tuple[list[Admitted], list[RefusedBid]]:
    """
    Return the admitted asks, each with lot, block and hold, and the refused ones with a reason. A
    wallet must cover an ask's own hold; the holds of its agent's other asks count when these have
    won.
    """
    lots = {lot.name: lot for lot in round_input.lots}
    router = Router(round_input.lots, round_input.incumbents)
    # Where everybody has named a pool, what the others do changes nobody's way, but that of parts.
    routed = any(
        not ask.lot or ask.otherwise or ask.is_joint or ask.is_part for ask in round_input.asks
    )
    joiner = Joiner(lots, router)
    entries: dict[str, _Entry] = {}
    # Not in the order of rank: else offering more would lead to another lot.
    for ask in sorted(round_input.asks, key=lambda a: (a.tie, a.id)):
        entry = entries[ask.id] = _entry(ask, lots, router, joiner)
        if routed and entry.lot is not None:
            router.take(entry.ask, entry.block, entry.lot)
            if isinstance(entry.block, Joint) and entry.ask.offered >= router.reserve(
                entry.block, entry.lot
            ):
                joiner.take(entry.block)
    purses = Purses(round_input.available, round_input.budgets)
    admitted: list[Admitted] = []
    refused: list[RefusedBid] = []
    for first in sorted(round_input.asks, key=rank_of):
        entry = entries[first.id]
        ask, lot, block = entry.ask, entry.lot, entry.block
        hold = ask.hold.get(lot.name, 0) if lot else 0
        reason, missing = entry.problem, 0
        if reason is None and lot is not None:
            if ask.offered < router.reserve(block, lot):
                reason = BidReason.BELOW_RESERVE
            elif hold > purses.of(ask):
                reason, missing = purses.reason(ask, hold), hold - purses.of(ask)
        if reason is None and lot is not None:
            admitted.append(Admitted(ask, lot, block, hold, entry.option))
        else:
            loss = loss_of(ask, block, lot, entry.option, reason=reason, short=missing)
            loss = msgspec.structs.replace(
                loss,
                largest=entry.largest,
                no_such_pool=entry.no_such_pool,
                pools=tuple(sorted(lots)) if entry.no_such_pool else (),
            )
            refused.append(RefusedBid(ask, loss, block))
    return admitted, refused


class _Entry(NamedTuple):
    """One alternative of a bid, in the lot it would enter."""

    ask: Ask
    option: int
    block: Block = Block(0, count=0)
    lot: Lot | None = None
    problem: BidReason | None = None
    largest: int = CHAIN[0]  # what may be asked for in one block, if it is too large for all
    no_such_pool: str = ""  # the pool that it names, if there is none of that name


def _entry(first: Ask, lots: Mapping[str, Lot], router: Router, joiner: Joiner) -> _Entry:
    """The alternative that gains most, the earlier of equals; else why the first cannot enter."""
    entries = [_routed(ask, option, lots, router, joiner) for option, ask in first.choices.items()]
    able = [(entry, entry.lot) for entry in entries if entry.lot is not None]
    if not able:
        return entries[0]
    if len(able) == 1:
        return able[0][0]
    gains = [router.surplus(entry.ask, entry.block, lot) for entry, lot in able]
    return able[gains.index(max(gains))][0]


def _routed(
    ask: Ask, option: int, lots: Mapping[str, Lot], router: Router, joiner: Joiner
) -> _Entry:
    if not ask.is_joint:
        blocks = router.shapes(ask)
        if isinstance(blocks, BidReason):
            return _refused(ask, option, blocks, router)
        name = router.cheapest(blocks)
        return _Entry(ask, option, router.seated(name, blocks[name]), lots[name])
    linked = _in_one_domain(ask, router)
    if linked is not None and router.is_free(*linked):
        return _Entry(ask, option, linked[1], lots[linked[0]])
    joint_block = joiner.route(ask)
    if linked is not None:
        lot, block = lots[linked[0]], linked[1]
        # Split over a machine's links only where that is free: to displace somebody for it, a
        # block that can go anywhere costs less.
        free = not isinstance(joint_block, BidReason) and all(
            router.is_free(name, part) for name, part in joint_block.lots
        )
        if not free:
            return _Entry(ask, option, block, lot)
    if isinstance(joint_block, BidReason):
        return _refused(ask, option, joint_block, router)
    return _Entry(ask, option, joint_block, lots[joint_block.lots[0][0]])


def _in_one_domain(ask: Ask, router: Router) -> tuple[str, Block] | None:
    """
    Return the lot and block in which an ask for any GPUs of a machine is cheapest on one link,
    where exactly so many are sold in a block: linked better than any other GPUs of a machine, and
    counted exactly wherever it goes.
    """
    if not ask.is_loose or ask.machines is not None:
        return None
    shapes = router.shapes(msgspec.structs.replace(ask, spread=False))
    if isinstance(shapes, BidReason):
        return None
    blocks = {lot: block for lot, block in shapes.items() if block.size == ask.gpus}
    if not blocks:
        return None
    lot = router.cheapest(blocks)
    return lot, blocks[lot]


def _refused(ask: Ask, option: int, problem: BidReason, router: Router) -> _Entry:
    needs = (ask, *ask.also)
    match problem:
        case BidReason.LARGER_THAN_EVERY_DOMAIN:
            return _Entry(ask, option, problem=problem, largest=min(map(router.largest, needs)))
        case BidReason.NO_SUCH_POOL:
            unknown = next(need.lot for need in needs if need.lot and not router.sells(need.lot))
            return _Entry(ask, option, problem=problem, no_such_pool=unknown)
        case _:
            return _Entry(ask, option, problem=problem)
