"""
The market: what is for sale, who asks, who wins, and what a winner pays.

Read in this order: `model` (the nouns of a round), `room` (does a set of blocks fit?),
`clearing` (who wins, at which price), `preemption` (what a displaced lease is owed),
`lot` (one lot, all of it), `defragment` (who is moved, and who pays), `round` (every lot), then
`prices`, `routing`, `explain` and `metering`. Bids for several lots at once: `rooms`, `joining`
(which lots, or which machine), `joined`.
`fast` is `clearing` again, for thousands of bids.
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
