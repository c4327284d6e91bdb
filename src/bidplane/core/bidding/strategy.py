"""
The strategies by which an agent's pods bid when they name no price; each is asked every round.

Pure: what to bid follows from what the work is worth, how long it has waited,
and when it must be done. A winner pays the least it
could have bid, so these never save by bidding low; they save by being willing to wait.

    manual    the agent's price, and that is all
    steady    the same, but no more than its wallet can pay for all its work (`steady`): the
              exchange, which has the wallets, lowers its bids in each round
    thrifty   begins at a quarter of it, and after an hour of waiting offers all of it
    deadline  a quarter of it while there is time, all of it when waiting longer would be too late
    paced     so much of it that a budget lasts until the work is done or due (`pacing`)
"""

from __future__ import annotations

import msgspec

from bidplane.api.agent import Strategy
from bidplane.core.bidding import pacing
from bidplane.core.bidding.pacing import Pace, PacedOffer, PacingPlan, WorkProgress

PATIENCE_SECONDS = 3600  # until a thrifty bid offers all
COVER_SECONDS = 60  # what a bid must hold, in a pool with the default terms
FIRST_PART = 4  # of the value, a quarter, is what waiting bids begin with


class StrategyInput(msgspec.Struct, frozen=True, kw_only=True):
    value: int  # of a GPU-hour, micro-credits
    weight: int  # of `GPU_WEIGHT`
    since: int  # milliseconds: when it began to wait
    work_seconds: int = 3600
    deadline: int = 0  # milliseconds; 0 is none
    budget: int = 0  # micro-credits that the work may cost in all; 0 is no limit
    spent: int = 0  # of that, so far
    ran_seconds: int = 0  # of the work, so far
    pace: Pace = Pace()  # what was remembered of the last offer


def offer(strategy: Strategy, wish: StrategyInput, *, now: int) -> PacedOffer:
    """The price to bid now; 0 is no bid."""
    match strategy:
        case Strategy.THRIFTY:
            waited = min(max(0, now - wish.since), 1000 * PATIENCE_SECONDS)
            return _part(wish.value, waited * pacing.UNIT // (1000 * PATIENCE_SECONDS))
        case Strategy.DEADLINE if wish.deadline:
            if now >= wish.deadline:
                return PacedOffer(price=0, reason="its deadline has passed")
            plan = PacingPlan(
                value=wish.value,
                weight=wish.weight,
                work_seconds=wish.work_seconds,
                budget=0,
                start=wish.since,
                deadline=wish.deadline,
            )
            return _part(wish.value, pacing.urgency(plan, wish.work_seconds, now=now))
        case Strategy.PACED if wish.budget:
            return _paced(wish, now)
        case _:
            return PacedOffer(price=wish.value, reason="its value")


def _paced(wish: StrategyInput, now: int) -> PacedOffer:
    plan = PacingPlan(
        value=wish.value,
        weight=wish.weight,
        work_seconds=wish.work_seconds,
        budget=wish.budget,
        start=wish.since,
        deadline=wish.deadline,
    )
    # Work that takes longer than it said is not done: its pod still waits.
    ran = min(wish.ran_seconds, wish.work_seconds - 1)
    paced, pace = pacing.bid(
        plan,
        wish.pace,
        WorkProgress(spent=wish.spent, ran_seconds=ran),
        now=now,
        cover_seconds=COVER_SECONDS,
    )
    return msgspec.structs.replace(paced, pace=pace)


def _part(value: int, urgency: int) -> PacedOffer:
    """An offer of a quarter of the value, and of the rest in proportion to the urgency."""
    first = max(1, value // FIRST_PART)
    price = first + (value - first) * urgency // pacing.UNIT
    reason = "its value" if price == value else "less than its value, while it can wait"
    return PacedOffer(price=price, reason=reason)
