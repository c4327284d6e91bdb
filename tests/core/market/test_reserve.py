"""The base price: floor, ceiling, direction, and no dependence on how often one looks."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.market.pricing.reserve import BasePrice, advance, bounds

FLOOR, TARGET = 100_000, 92


def after(known: BasePrice, seconds: float) -> BasePrice:
    at = known.at + int(1000 * seconds)
    return advance(known, at, floor=FLOOR, target_percent=TARGET)


def price(base: int, *, leased: int, unserved: int = 0) -> BasePrice:
    return BasePrice(base=base, at=0, devices=8, leased=leased, unserved=unserved)


states = st.builds(
    BasePrice,
    base=st.integers(FLOOR, 50 * FLOOR),
    at=st.just(0),
    devices=st.just(8),
    leased=st.integers(0, 8),
    unserved=st.sampled_from([0, FLOOR, 10 * FLOOR, 100 * FLOOR]),
)


@given(states, st.integers(0, 4000))
def test_it_stays_between_floor_and_what_is_offered(state: BasePrice, seconds: int) -> None:
    base = after(state, seconds).base
    assert FLOOR <= base <= max(state.base, state.unserved)


@given(states, st.lists(st.integers(0, 2500), max_size=20))
def test_looking_often_does_not_change_it(state: BasePrice, steps: list[int]) -> None:
    looked = state
    for step in steps:
        now = min(state.at + sum(steps), looked.at + step)
        looked = advance(looked, now, floor=FLOOR, target_percent=TARGET)
    once = advance(state, looked.at, floor=FLOOR, target_percent=TARGET)
    assert looked == once


def test_it_falls_to_the_floor_while_devices_idle() -> None:
    assert after(price(900_000, leased=4), 60).base < 900_000
    assert after(price(900_000, leased=4), 3600).base == FLOOR


def test_it_rises_only_while_somebody_goes_without() -> None:
    assert after(price(900_000, leased=8), 3600).base == 900_000
    assert after(price(900_000, leased=8, unserved=1_000_000), 10).base > 900_000
    assert after(price(900_000, leased=8, unserved=1_000_000), 3600).base == 1_000_000


def test_a_clock_that_went_back_moves_nothing() -> None:
    state = msgspec.structs.replace(price(900_000, leased=0), at=10_000)
    assert advance(state, 0, floor=FLOOR, target_percent=TARGET) == state


def test_a_pool_without_devices_has_a_price() -> None:
    state = BasePrice(base=0, at=0, devices=0, leased=0, unserved=0)
    assert after(state, 10).base == FLOOR


@given(states, st.integers(0, 120))
def test_the_published_bounds_hold(state: BasePrice, seconds: int) -> None:
    low, high = bounds(state.base, floor=FLOOR, target_percent=TARGET, seconds=seconds)
    assert low <= after(state, seconds).base <= high
