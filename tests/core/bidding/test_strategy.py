"""Strategies: what each offers, and what none ever does."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.agent import Strategy
from bidplane.core.bidding.strategy import PATIENCE_SECONDS, StrategyInput, offer

VALUE = 4_000_000
MINUTE = 60_000


def wish(**changes: int) -> StrategyInput:
    return msgspec.structs.replace(StrategyInput(value=VALUE, weight=56, since=0), **changes)


wishes = st.builds(
    StrategyInput,
    value=st.integers(1, 10**9),
    weight=st.sampled_from([7, 28, 56, 448]),
    since=st.integers(0, 10**6),
    work_seconds=st.integers(1, 10_000),
    deadline=st.integers(0, 2 * 10**7),
    hourly=st.integers(0, 10**10),
    promised=st.integers(0, 10**10),
)


@given(st.sampled_from(Strategy), wishes, st.integers(0, 3 * 10**7))
def test_nobody_offers_more_than_it_is_worth(
    strategy: Strategy, made: StrategyInput, now: int
) -> None:
    found = offer(strategy, made, now=now)
    assert 0 <= found.price <= made.value
    assert found.reason


@given(wishes, st.integers(0, 3 * 10**7))
def test_steady_never_promises_more_an_hour_than_is_granted(made: StrategyInput, now: int) -> None:
    price = offer(Strategy.STEADY, made, now=now).price
    if made.hourly and price:
        assert made.promised + price * made.weight // 56 <= made.hourly


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


def test_steady_offers_what_is_left() -> None:
    made = wish(hourly=6_000_000)
    assert offer(Strategy.STEADY, made, now=0).price == VALUE
    busy = msgspec.structs.replace(made, promised=5_000_000)
    assert offer(Strategy.STEADY, busy, now=0).price == 1_000_000
    full = msgspec.structs.replace(made, promised=6_000_000)
    assert offer(Strategy.STEADY, full, now=0).price == 0
