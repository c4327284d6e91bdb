"""
One round: admit, route, then clear each lot by itself.

Pure: the same input gives the same result, whatever the order of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bidplane.api.bid import BidReason
from bidplane.core.chain import block_size
from bidplane.core.market.lot import Admitted, Refused, clear_lot
from bidplane.core.market.model import Ask, Lost, Lot, RoundInput, RoundResult
from bidplane.core.market.routing import Router


def clear_round(given: RoundInput) -> RoundResult:
    admitted, refused = admit(given)
    results = [
        clear_lot(
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
    router = Router(given.lots, given.incumbents)
    available = dict(given.available)
    admitted: list[Admitted] = []
    refused: list[Refused] = []
    for ask in sorted(given.asks, key=lambda a: (-a.price * a.weight, a.tie, a.id)):
        block = block_size(ask.gpus)
        lot = _lot_for(ask, block, lots, router)
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


def _lot_for(
    ask: Ask, block: int | None, lots: Mapping[str, Lot], router: Router
) -> Lot | BidReason:
    stocked = [lot for lot in lots.values() if lot.devices]
    if ask.lot:
        if ask.lot not in lots:
            return BidReason.NO_SUCH_POOL
        stocked = [lot for lot in stocked if lot.name == ask.lot]
    if not stocked:
        return BidReason.NO_DEVICES
    if block is None:
        return BidReason.LARGER_THAN_EVERY_DOMAIN
    return router.route(ask, block, stocked) or BidReason.LARGER_THAN_EVERY_DOMAIN
