"""
An autobidder: what to bid this round, given what the work is worth, by when, and a budget.

A winner pays the least it could have bid, so with money enough the best bid is the value
itself. A budget changes that: what is spent now is missing later. So the bid is the value
divided by (1 + μ), where μ is what a credit is worth beyond itself. μ rises while money goes
faster than planned and falls while it goes slower; the plan is an even spend until the
deadline, or until the work is done.

Never over: a bid's hold is never more than what is left, so no price can take more.

Near its deadline work that would be late is worth its whole value at once: urgency takes
the discount back, step by step, once waiting any longer would miss it.
"""

from __future__ import annotations

import msgspec

from bidplane.api.money import LARGEST_PRICE, cost

UNIT = 1 << 16  # μ in 65,536ths: whole numbers, the same on every machine
# How fast μ follows: a plan overspent by its whole for an hour moves it by about 4.
GAIN = 4
MOST = 1000 * UNIT


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent says once."""

    value: int  # of a GPU-hour: the most it is worth, micro-credits
    gpus: int
    work_seconds: int  # that it must run in all
    budget: int  # micro-credits for all of it
    start: int  # milliseconds
    deadline: int  # milliseconds; 0 is none


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered from round to round."""

    mu: int = 0
    spent: int = 0  # at the last look
    at: int = 0  # milliseconds, of the last look; 0 before the first


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened so far."""

    spent: int
    ran_seconds: int


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    price: int  # micro-credits per GPU-hour; 0 is no bid
    reason: str


def bid(
    plan: Plan, pace: Pace, progress: Progress, *, now: int, cover_seconds: int
) -> tuple[Offer, Pace]:
    """This round's offer, and what to remember. `cover_seconds`: what a hold must cover."""
    pace = advance(plan, pace, progress, now=now)
    left = plan.budget - progress.spent
    todo = plan.work_seconds - progress.ran_seconds
    if todo <= 0:
        return Offer(price=0, reason="the work is done"), pace
    if plan.deadline and now >= plan.deadline:
        return Offer(price=0, reason="the deadline has passed"), pace
    # The highest price whose hold the budget can still cover.
    affordable = affordable_price(left, plan.gpus, cover_seconds)
    if affordable <= 0:
        return Offer(price=0, reason="the budget is spent"), pace
    paced = plan.value * UNIT // (UNIT + pace.mu)
    worth = paced + (plan.value - paced) * urgency(plan, todo, now=now) // UNIT
    price = min(worth, affordable, LARGEST_PRICE)
    if price < worth:
        return Offer(price=price, reason="all that the budget still covers"), pace
    if price == plan.value:
        return Offer(price=price, reason="its value"), pace
    return Offer(price=price, reason="its value, held back so that the budget lasts"), pace


def affordable_price(left: int, gpus: int, cover_seconds: int) -> int:
    price = max(0, left) * 3600 // (gpus * cover_seconds)
    while price and cost(price, gpus, cover_seconds) > left:  # cost rounds up
        price -= 1
    return price


def advance(plan: Plan, pace: Pace, progress: Progress, *, now: int) -> Pace:
    """μ, moved by how far the spend since the last look was from the plan's."""
    if not pace.at or now <= pace.at:
        return Pace(mu=pace.mu, spent=progress.spent, at=max(now, pace.at))
    planned = planned_spend(plan, now) - planned_spend(plan, pace.at)
    over = (progress.spent - pace.spent) - planned
    hour = max(1, plan.budget * 3_600_000 // max(1, horizon(plan) - plan.start))
    mu = pace.mu + GAIN * UNIT * over // hour
    return Pace(mu=min(max(mu, 0), MOST), spent=progress.spent, at=now)


def planned_spend(plan: Plan, now: int) -> int:
    """What an even spend has used by `now`."""
    whole = max(1, horizon(plan) - plan.start)
    return plan.budget * min(max(0, now - plan.start), whole) // whole


def horizon(plan: Plan) -> int:
    """When the budget may be used up: at the deadline, else when the work could be done."""
    return plan.deadline or plan.start + 1000 * plan.work_seconds


def urgency(plan: Plan, todo: int, *, now: int) -> int:
    """0 while there is time to wait, up to UNIT when every second that is left is needed."""
    if not plan.deadline:
        return 0
    left = plan.deadline - now
    slack = left - 1000 * todo
    whole = max(1, plan.deadline - plan.start - 1000 * plan.work_seconds)
    return UNIT - min(max(0, slack), whole) * UNIT // whole
