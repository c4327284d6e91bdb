"""The meter: every started second once, and no micro-credit lost or found in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.market.clearing import preemption
from bidplane.core.market.pricing import metering
from bidplane.core.market.pricing.metering import Meter


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 10_000_000), st.booleans())),
    st.sampled_from([2100, 2400, 5040, 8400, GPU_WEIGHT, 8 * GPU_WEIGHT]),
)
def test_bills_add_up_to_the_whole_rounded_up_once(
    steps: list[tuple[int, int, bool]], weight: int
) -> None:
    meter, now, paid, exact = Meter(0, 0), 0, 0, 0
    for elapsed, price, bill in steps:
        now += elapsed
        seconds = max(0, -(-(now - meter.until) // 1000))
        exact += price * weight * seconds
        meter = meter.run(now, price=price, weight=weight)
        if bill:
            paid += meter.due
            meter = meter.billed(meter.due)
    # Seconds in all: those that have started, whatever happened between.
    assert meter.until == 1000 * -(-now // 1000)
    assert 0 <= (paid + meter.due) * 3600 * GPU_WEIGHT - exact < 3600 * GPU_WEIGHT


def test_small_bills_do_not_each_round_up() -> None:
    meter, paid = Meter(0, 0), 0
    for second in range(1, 3601):
        meter = meter.run(1000 * second, price=1, weight=GPU_WEIGHT)
        paid += meter.due
        meter = meter.billed(meter.due)
    assert paid == 1


def test_a_started_second_is_charged_whole() -> None:
    assert Meter(0, 0).run(1, price=3_600_000, weight=GPU_WEIGHT).due == 1000
    assert Meter(0, 0).run(1001, price=3_600_000, weight=GPU_WEIGHT).due == 2000


def test_time_that_goes_back_is_not_refunded() -> None:
    assert Meter(5, 9000).run(1000, price=100, weight=GPU_WEIGHT) == Meter(5, 9000)


@given(st.integers(1, 600), st.integers(0, 600))
def test_a_hold_always_covers_a_notice(epoch: int, notice: int) -> None:
    cover = metering.cover_seconds(epoch, notice)
    assert cover >= epoch
    assert cover > metering.reserve_seconds(notice) > notice
    assert cover >= metering.MINIMUM_SECONDS


def test_in_the_first_epoch_the_price_only_falls() -> None:
    prices = {"win": 200, "most": 500}
    assert metering.charged_price(stay=300, in_first_epoch=True, **prices) == 200
    assert metering.charged_price(stay=100, in_first_epoch=True, **prices) == 100
    assert metering.charged_price(stay=300, in_first_epoch=False, **prices) == 300
    assert metering.charged_price(stay=900, in_first_epoch=False, **prices) == 500


def test_rank_weight_carries_the_restart_and_has_a_limit() -> None:
    assert preemption.incumbent_weight(30, 30) == 1024 + 51 + 204  # about 1.25
    assert preemption.incumbent_weight(30, 120) / 1024 > 1.5
    assert preemption.incumbent_weight(10_000, 0) == 3 * 1024


def test_compensation_is_at_most_the_rent_that_was_paid() -> None:
    terms = {
        "price": 3_600_000,
        "weight": 2 * GPU_WEIGHT,
        "notice_seconds": 30,
        "restart_seconds": 30,
    }
    assert preemption.compensation(**terms, paid=10**9) == 120_000
    assert preemption.compensation(**terms, paid=7) == 7
