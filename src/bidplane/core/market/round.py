"""
One round: admit, route, then clear each lot by itself, and make room in what it left. Lots that
somebody needs together are cleared together.

Pure: the same input gives the same result, whatever the order of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason
from bidplane.core.chain import CHAIN, Block, weight_of
from bidplane.core.market.components import Component, components
from bidplane.core.market.joined import clear_joined
from bidplane.core.market.joining import Joiner
from bidplane.core.market.lot import Admitted, Refused, clear_lot
from bidplane.core.market.model import Ask, Kept, Lost, Lot, RoundInput, RoundResult
from bidplane.core.market.moving import with_moves
from bidplane.core.market.rooms import Joint
from bidplane.core.market.routing import Router


def clear_round(given: RoundInput) -> RoundResult:
    pinned = [incumbent for incumbent in given.incumbents if incumbent.pinned]
    if pinned:
        contested = tuple(i for i in given.incumbents if not i.pinned)
        given = msgspec.structs.replace(given, incumbents=contested)
    admitted, refused = admit(given)
    results = [_cleared(some) for some in components(given, admitted, refused)]
    lost = [refusal.loss for refusal in refused if not refusal.loss.lot]
    lost += [loss for result in results for loss in result.lost]
    # Nobody could have what it has: the least it could have bid and kept it is its reserve.
    kept = [Kept(lease=i.id, price=min(i.reserve, i.price)) for i in pinned]
    kept += [one for result in results for one in result.kept]
    return RoundResult(
        won=tuple(sorted((w for r in results for w in r.won), key=lambda w: w.ask)),
        lost=tuple(sorted(lost, key=lambda loss: loss.ask)),
        kept=tuple(sorted(kept, key=lambda k: k.lease)),
        displaced=tuple(sorted((d for r in results for d in r.displaced), key=lambda d: d.lease)),
        lots=tuple(sorted((lot for r in results for lot in r.lots), key=lambda lot: lot.lot)),
        moved=tuple(sorted((m for r in results for m in r.moved), key=lambda m: m.lease)),
    )


def _cleared(some: Component) -> RoundResult:
    if some.is_joint:
        return clear_joined(some)
    (lot,) = some.lots
    result = clear_lot(lot, some.entries, some.incumbents, some.refused)
    return with_moves(lot, some.entries, some.incumbents, result)


def admit(given: RoundInput) -> tuple[list[Admitted], list[Refused]]:
    """
    Each ask's lot, block and hold; or why it takes no part.

    The wallet is promised to an agent's asks from the highest key down: an ask is never
    admitted on credits that another of the same agent may need this round.
    """
    lots = {lot.name: lot for lot in given.lots}
    router = Router(given.lots, given.incumbents)
    # Where everybody has named a pool, what the others do changes nobody's way.
    routed = any(not ask.lot or ask.otherwise or ask.is_joint for ask in given.asks)
    joiner = Joiner(lots, router)
    entries: dict[str, _Entry] = {}
    # Not in the order of rank: else offering more would lead to another lot.
    for ask in sorted(given.asks, key=lambda a: (a.tie, a.id)):
        entry = entries[ask.id] = _entry(ask, lots, router, joiner)
        if routed and entry.lot is not None:
            router.take(entry.ask, entry.block, entry.lot)
            if isinstance(entry.block, Joint) and entry.ask.offered >= router.reserve(
                entry.block, entry.lot
            ):
                joiner.take(entry.block)
    available = dict(given.available)
    admitted: list[Admitted] = []
    refused: list[Refused] = []
    for first in sorted(given.asks, key=lambda a: (-a.offered * a.weight, a.tie, a.id)):
        entry = entries[first.id]
        ask, lot, block = entry.ask, entry.lot, entry.block
        gpus = block.count if block.share else block.gpus
        loss = Lost(
            ask=ask.id,
            reason=entry.problem or BidReason.BELOW_RESERVE,
            lot=lot.name if lot else "",
            price=ask.price,
            gpus=gpus,
            share=block.share,
            option=entry.option,
            weight=weight_of(block, lot.leaves if lot else ()),
            largest=entry.largest,
            by_lot=block.by_lot if isinstance(block, Joint) else {},
            one_node=ask.one_node,
        )
        if entry.problem or lot is None:
            refused.append(Refused(ask, loss, block))
            continue
        hold = ask.hold.get(lot.name, 0)
        left = available.get(ask.agent, 0) - hold
        if ask.offered < router.reserve(block, lot):
            refused.append(Refused(ask, loss, block))
        elif left < 0:
            poor = msgspec.structs.replace(loss, reason=BidReason.WALLET_TOO_SMALL, short=-left)
            refused.append(Refused(ask, poor, block))
        else:
            available[ask.agent] = left
            admitted.append(Admitted(ask, lot, block, hold, entry.option))
    return admitted, refused


class _Entry(NamedTuple):
    """One alternative of a bid, in the lot it would enter."""

    ask: Ask
    option: int
    block: Block = Block(0, count=0)
    lot: Lot | None = None
    problem: BidReason | None = None
    largest: int = CHAIN[0]  # what may be asked for in one block, if it is too large for all


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
    if ask.is_joint:
        made = joiner.route(ask)
        if isinstance(made, BidReason):
            return _refused(ask, option, made, router)
        return _Entry(ask, option, made, lots[made.lots[0][0]])
    blocks = router.shapes(ask)
    if isinstance(blocks, BidReason):
        return _refused(ask, option, blocks, router)
    name = router.cheapest(blocks)
    return _Entry(ask, option, blocks[name], lots[name])


def _refused(ask: Ask, option: int, problem: BidReason, router: Router) -> _Entry:
    if problem is not BidReason.LARGER_THAN_EVERY_DOMAIN:
        return _Entry(ask, option, problem=problem)
    largest = min(map(router.largest, (ask, *ask.also)))
    return _Entry(ask, option, problem=problem, largest=largest)
