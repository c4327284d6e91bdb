"""
An autobidder: what to bid this round, given what the work is worth, by when, and a budget.

A winner pays the least it could have bid, so with money enough the best bid is the value
itself. A budget changes that: what is spent now is missing later. So the bid is the value
divided by (1 + μ), where μ is what a credit is worth beyond itself. μ rises while money goes
faster than planned and falls while it goes slower; the plan is to spend what is left evenly
until the deadline, or until the work is done.

Never over: no bid is higher than what lasts, so that what is left pays for all that is to be
done, whatever the price rises to; and no hold is ever more than what is left.

Near its deadline work that would be late is worth its whole value at once: urgency takes
the discount back, step by step, once waiting any longer would miss it. What lasts is its limit.
"""

from __future__ import annotations

import msgspec

from bidplane.api.money import GPU_WEIGHT, LARGEST_PRICE, SECONDS_PER_HOUR

UNIT = 1 << 16  # μ in 65,536ths: whole numbers, the same on every machine
# How fast μ follows: a plan overspent by its whole for an hour moves it by about 4.
GAIN = 4
MOST = 1000 * UNIT
SPENT = "the budget is spent"


class PacingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a work: its value, size, budget and deadline. The agent sets it once."""

    value: int  # of a GPU-hour: the most it is worth, micro-credits
    weight: int  # of `GPU_WEIGHT`
    work_seconds: int  # that it must run in all
    budget: int  # micro-credits for all of it
    start: int  # milliseconds
    deadline: int  # milliseconds; 0 is none


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the pacing that is kept from round to round."""

    mu: int = 0
    spent: int = 0  # at the last look
    at: int = 0  # milliseconds, of the last look; 0 before the first


class WorkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the work so far."""

    spent: int
    ran_seconds: int


class PacedOffer(msgspec.Struct, frozen=True, kw_only=True):
    price: int  # micro-credits per GPU-hour; 0 is no bid
    reason: str
    pace: Pace | None = None  # what to remember until the next


def bid(
    plan: PacingPlan, pace: Pace, progress: WorkProgress, *, now: int, cover_seconds: int
) -> tuple[PacedOffer, Pace]:
    """
    This round's offer, and the pace to keep for the next. `cover_seconds`: the time that a hold
    must cover.
    """
    pace = advance(plan, pace, progress, now=now)
    credits = plan.budget - progress.spent
    todo = plan.work_seconds - progress.ran_seconds
    if todo <= 0:
        return PacedOffer(price=0, reason="the work is done"), pace
    if plan.deadline and now >= plan.deadline:
        return PacedOffer(price=0, reason="the deadline has passed"), pace
    # The highest price at which what is left lasts for what is to be done: a lease's price may
    # rise to its bid, and who bid more would run out before the work is done.
    affordable = affordable_price(credits, plan.weight, max(cover_seconds, todo))
    if affordable <= 0:
        return PacedOffer(price=0, reason=SPENT), pace
    paced = plan.value * UNIT // (UNIT + pace.mu)
    worth = paced + (plan.value - paced) * urgency(plan, todo, now=now) // UNIT
    price = min(worth, affordable, LARGEST_PRICE)
    if price < worth:
        return PacedOffer(price=price, reason="what its budget covers until it is done"), pace
    if price == plan.value:
        return PacedOffer(price=price, reason="its value"), pace
    return PacedOffer(price=price, reason="its value, held back so that the budget lasts"), pace


def affordable_price(credits: int, weight: int, cover_seconds: int) -> int:
    # Rent rounds up to whole micro-credits: whatever is below the next is still available.
    """The highest price at which `credits` pay for `cover_seconds`."""
    return max(0, credits) * GPU_WEIGHT * SECONDS_PER_HOUR // (weight * cover_seconds)


def advance(plan: PacingPlan, pace: Pace, progress: WorkProgress, *, now: int) -> Pace:
    """
    The pace with μ moved by the difference between the planned and the real spend since the last
    look.
    """
    if not pace.at or now <= pace.at:
        return Pace(mu=pace.mu, spent=progress.spent, at=max(now, pace.at))
    credits, time = max(0, plan.budget - pace.spent), max(1, horizon(plan) - pace.at)
    planned = credits * min(now - pace.at, time) // time
    over = (progress.spent - pace.spent) - planned
    hour = max(1, credits * 1000 * SECONDS_PER_HOUR // time)
    mu = pace.mu + GAIN * UNIT * over // hour
    return Pace(mu=min(max(mu, 0), MOST), spent=progress.spent, at=now)


def horizon(plan: PacingPlan) -> int:
    """
    The time when the budget may be used up: at the deadline, else when the work could be done.
    """
    return plan.deadline or plan.start + 1000 * plan.work_seconds


def urgency(plan: PacingPlan, todo: int, *, now: int) -> int:
    """The urgency: 0 while there is time to wait, up to UNIT when every second left is needed."""
    if not plan.deadline:
        return 0
    remaining = plan.deadline - now
    slack = remaining - 1000 * todo
    all_slack = max(1, plan.deadline - plan.start - 1000 * plan.work_seconds)
    return UNIT - min(max(0, slack), all_slack) * UNIT // all_slack
