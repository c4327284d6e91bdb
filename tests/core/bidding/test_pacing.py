"""The autobidder spends to plan, and never over, whatever prices do."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.money import GPU_WEIGHT, rent
from bidplane.core.bidding.pacing import (
    Pace,
    PacedOffer,
    PacingPlan,
    WorkProgress,
    affordable_price,
    bid,
    urgency,
)

CREDIT = 1_000_000
COVER = 60

plans = st.builds(
    PacingPlan,
    value=st.integers(1, 50 * CREDIT),
    weight=st.sampled_from([2100, GPU_WEIGHT, 2 * GPU_WEIGHT, 8 * GPU_WEIGHT]),
    work_seconds=st.integers(1, 7200),
    budget=st.integers(0, 100 * CREDIT),
    start=st.just(1_000),
    deadline=st.one_of(st.just(0), st.integers(60_000, 14_400_000)),
)


class Run:
    """A plan in a market whose price the test decides; a round each ten seconds."""

    def __init__(self, plan: PacingPlan) -> None:
        self.plan, self.pace = plan, Pace()
        self.spent = self.ran = 0
        self.now = plan.start
        self.offers: list[PacedOffer] = []

    def round(self, price: int, seconds: int = 10) -> PacedOffer:
        progress = WorkProgress(spent=self.spent, ran_seconds=self.ran)
        offer, self.pace = bid(self.plan, self.pace, progress, now=self.now, cover_seconds=COVER)
        self.offers.append(offer)
        if offer.price and offer.price >= price:
            self.spent += rent(price, self.plan.weight, seconds)
            self.ran += seconds
        self.now += 1000 * seconds
        return offer


@settings(max_examples=200)
@given(plans, st.lists(st.integers(1, 80 * CREDIT), max_size=60))
def test_it_never_spends_more_than_its_budget(plan: PacingPlan, prices: list[int]) -> None:
    run = Run(plan)
    for price in prices:
        # Whatever the price, a round charges at most what the hold covers.
        run.round(price, seconds=COVER)
        assert run.spent <= plan.budget


@settings(max_examples=200)
@given(plans, st.lists(st.integers(1, 80 * CREDIT), max_size=60))
def test_it_never_bids_more_than_the_work_is_worth(plan: PacingPlan, prices: list[int]) -> None:
    run = Run(plan)
    for price in prices:
        assert 0 <= run.round(price).price <= plan.value


@given(plans, st.integers(0, 10_000_000))
def test_nothing_is_bid_for_work_that_is_done_or_late(plan: PacingPlan, late: int) -> None:
    done = WorkProgress(spent=0, ran_seconds=plan.work_seconds)
    assert bid(plan, Pace(), done, now=2_000, cover_seconds=COVER)[0].price == 0
    if plan.deadline:
        begun, now = WorkProgress(spent=0, ran_seconds=0), plan.deadline + late
        assert bid(plan, Pace(), begun, now=now, cover_seconds=COVER)[0].price == 0


@given(
    st.integers(0, 10**12), st.sampled_from([2100, GPU_WEIGHT, 8 * GPU_WEIGHT]), st.integers(1, 600)
)
def test_what_is_affordable_is_the_most_that_is(left: int, weight: int, cover: int) -> None:
    price = affordable_price(left, weight, cover)
    assert rent(price, weight, cover) <= left
    assert rent(price + 1, weight, cover) > left


@given(plans, st.integers(0, 100 * CREDIT), st.integers(0, 7000))
def test_what_it_bids_lasts_until_the_work_is_done(plan: PacingPlan, spent: int, ran: int) -> None:
    """Were it to pay its bid for all that is left to do, the budget would cover it."""
    progress = WorkProgress(spent=min(spent, plan.budget), ran_seconds=min(ran, plan.work_seconds))
    found, _ = bid(plan, Pace(), progress, now=2_000, cover_seconds=COVER)
    todo = max(COVER, plan.work_seconds - progress.ran_seconds)
    assert rent(found.price, plan.weight, todo) <= plan.budget - progress.spent


def plan(budget: float, *, hours: float = 4, work: float = 4) -> PacingPlan:
    return PacingPlan(
        value=10 * CREDIT,
        weight=GPU_WEIGHT,
        work_seconds=int(3600 * work),
        budget=int(budget * CREDIT),
        start=1_000,
        deadline=1_000 + int(3_600_000 * hours),
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_tight_budget_is_spent_evenly_to_the_deadline(seed: int) -> None:
    """Prices wander about 2 credits; the budget buys about half of the time at that price."""
    dice, run, halfway = random.Random(seed), Run(plan(4, hours=4, work=1.5)), 0
    for n in range(1440):
        run.round(int(CREDIT * dice.lognormvariate(0.7, 0.4)))
        if n == 720:
            halfway = run.spent
    assert run.spent <= run.plan.budget
    done = run.ran >= run.plan.work_seconds
    assert done or run.spent >= 0.9 * run.plan.budget
    assert halfway <= 0.75 * run.plan.budget


def test_it_waits_for_cheap_hours_when_it_can() -> None:
    """Dear and cheap hours in turn: pacing pays less for the same work than bidding the value."""
    paced, eager = Run(plan(6, hours=8, work=2)), 0
    ran = 0
    for n in range(2880):
        price = 8 * CREDIT if (n // 360) % 2 == 0 else CREDIT
        paced.round(price)
        if ran < paced.plan.work_seconds:
            eager += rent(price, GPU_WEIGHT, 10)
            ran += 10
    assert paced.ran == paced.plan.work_seconds
    assert paced.spent < eager // 2


def test_with_money_enough_it_bids_its_value() -> None:
    run = Run(plan(1000))
    assert run.round(CREDIT) == PacedOffer(price=10 * CREDIT, reason="its value")


def test_as_the_deadline_nears_it_stops_holding_back() -> None:
    tight = plan(4, hours=2, work=1)
    held = Pace(mu=9 << 16, spent=0, at=0)
    begun = WorkProgress(spent=0, ran_seconds=0)
    early, _ = bid(tight, held, begun, now=2_000, cover_seconds=COVER)
    late, _ = bid(tight, held, begun, now=1_000 + 3_600_000, cover_seconds=COVER)
    assert early.price < 2 * CREDIT
    assert late.price == 4 * CREDIT, "all that lasts for the hour it must run"
    assert urgency(tight, 3600, now=1_000) == 0
