"""
The market: what is for sale, who asks, who wins, and what a winner pays. Pure.

Read in this order: `model` (the nouns of a round), `clearing.capacity` (does a set of blocks
fit?), `clearing.greedy` (who wins, at which price), `clearing.preemption` (what a displaced lease
is owed), `clearing.lot` (one lot, all of it), `moving.defragmentation` (who is moved, and who
pays), `round` (every lot), then `pricing` and `routing`. Bids for several lots at once: `joint`.
`clearing.columns` is `clearing.greedy` again, for thousands of bids.
"""

from __future__ import annotations

from bidplane.core.market.model import (
    Ask,
    Displaced,
    Domain,
    Incumbent,
    Kept,
    Lost,
    Lot,
    LotResult,
    Moved,
    RoundInput,
    RoundResult,
    Won,
)
from bidplane.core.market.round import clear_round

__all__ = [
    "Ask",
    "Displaced",
    "Domain",
    "Incumbent",
    "Kept",
    "Lost",
    "Lot",
    "LotResult",
    "Moved",
    "RoundInput",
    "RoundResult",
    "Won",
    "clear_round",
]
