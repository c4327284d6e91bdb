"""
Where a bid that names no pool goes: to the lot where it gains most.

The posted prices are the last round's, so a bid's own offer does not move the price it
is routed by. Within the lot it was routed to, "one less would have lost" holds; across
lots nothing is promised.
"""

from __future__ import annotations

from collections.abc import Iterable

from bidplane.core.market.model import Ask, Lot


def route(ask: Ask, block: int, lots: Iterable[Lot]) -> Lot | None:
    """
    The lot with the largest (value − posted price) · GPUs, ties by name; None when no
    lot has a domain as large as the block. All candidates sell it the same block, so
    the number of GPUs does not change the order.
    """
    candidates = [lot for lot in lots if lot.largest >= block]
    return min(candidates, key=lambda lot: (lot.posted - ask.price, lot.name), default=None)
