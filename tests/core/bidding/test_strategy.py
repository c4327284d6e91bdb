"""Strategies: what each offers, and what none ever does."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.agent import Strategy
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.bidding.steady import sustainable_price
from bidplane.core.bidding.strategy import PATIENCE_SECONDS, StrategyInput, offer

VALUE = 4_000_000
MINUTE = 60_000


def wish(**changes: int) -> StrategyInput:
    return msgspec.structs.replace(
        StrategyInput(value=VALUE, weight=GPU_WEIGHT, since=0), **changes
    )


wishes = st.builds(
    StrategyInput,
    value=st.integers(1, 10**9),
    weight=st.sampled_from([2100, 8400, GPU_WEIGHT, 8 * GPU_WEIGHT]),
    since=st.integers(0, 10**6),
    work_seconds=st.integers(1, 10_000),
    deadline=st.integers(0, 2 * 10**7),
)


@given(st.sampled_from(Strategy), wishes, st.integers(0, 3 * 10**7))
def test_nobody_offers_more_than_it_is_worth(
    strategy: Strategy, made: StrategyInput, now: int
) -> None:
    found = offer(strategy, made, now=now)
    assert 0 <= found.price <= made.value
    assert found.reason


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**10),
    st.integers(0, 10**7),
    st.lists(st.sampled_from([2100, 8400, GPU_WEIGHT, 8 * GPU_WEIGHT]), min_size=1, max_size=20),
)
def test_steady_work_costs_no_more_an_hour_than_the_wallet_has(
    balance: int, refill: int, since_refill: int, weights: list[int]
) -> None:
    """All of it together, at what it offers."""
    price = sustainable_price(
        balance=balance, refill=refill, since_refill=since_refill, weight=sum(weights)
    )
    accrued = min(refill, refill * since_refill // 3_600_000)
    if price > 1:
        assert price * sum(weights) <= GPU_WEIGHT * (balance + accrued)
    assert (price + 1) * sum(weights) > GPU_WEIGHT * (balance + accrued)


def test_steady_offers_do_not_jump_at_a_refill() -> None:
    before = sustainable_price(balance=500, refill=1000, since_refill=3_600_000, weight=GPU_WEIGHT)
    assert (
        sustainable_price(balance=1500, refill=1000, since_refill=0, weight=GPU_WEIGHT)
        == before
        == 1500
    )


@given(wishes, st.lists(st.integers(0, 10**7), min_size=2, max_size=6))
def test_who_waits_offers_more_not_less(made: StrategyInput, times: list[int]) -> None:
    for strategy in (Strategy.THRIFTY, Strategy.DEADLINE):
        prices = [offer(strategy, made, now=now).price for now in sorted(times)]
        offered = [price for price in prices if price]  # after its deadline it bids no more
        assert offered == sorted(offered)


def test_thrifty_begins_with_a_quarter_and_ends_with_all() -> None:
    assert offer(Strategy.THRIFTY, wish(), now=0).price == VALUE // 4
    assert offer(Strategy.THRIFTY, wish(), now=1000 * PATIENCE_SECONDS).price == VALUE


def test_a_deadline_makes_it_urgent_when_waiting_would_be_too_late() -> None:
    made = wish(work_seconds=600, deadline=60 * MINUTE)
    assert offer(Strategy.DEADLINE, made, now=0).price == VALUE // 4
    half = offer(Strategy.DEADLINE, made, now=25 * MINUTE).price
    assert VALUE // 4 < half < VALUE
    assert offer(Strategy.DEADLINE, made, now=50 * MINUTE).price == VALUE
    assert offer(Strategy.DEADLINE, made, now=60 * MINUTE).price == 0
