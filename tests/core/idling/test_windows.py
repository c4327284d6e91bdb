"""Windows: within bounds, longer for dearer cold starts, shorter for dearer GPUs."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import EndpointSpec, EndpointTarget
from bidplane.api.idling.ladder import AutoWindows, LadderSpec, SleepKind, SleepRung, WakeTimes
from bidplane.core.idling.windows import STEPS, Arrivals, WindowInputs, best_window, windows_of

gaps = st.lists(st.floats(0, 100_000), max_size=60)
BOUNDS = {"least": 30, "most": 14_400}


def arrivals(lengths):
    history = Arrivals()
    for length in lengths:
        history.add(length)
    return history


@given(gaps, st.floats(1, 10_000), st.floats(1, 10_000))
def test_a_window_is_within_bounds_and_grows_with_what_a_cold_start_costs(lengths, a, b):
    history = arrivals(lengths)
    low, high = (best_window(history, worth, **BOUNDS) for worth in sorted((a, b)))
    assert 30 <= low <= high <= 14_400


@given(gaps, gaps)
def test_each_gap_counts_once_and_in_any_order(some, others):
    history = arrivals(some + others)
    other = arrivals(others + some)
    assert history.ended == other.ended
    assert sum(history.ended) == sum(STEPS[0] < gap <= STEPS[-1] for gap in some + others)


def test_a_service_used_every_ten_minutes_stays_and_one_used_once_a_day_does_not():
    assert best_window(arrivals([600.0] * 20), 600, **BOUNDS) >= 600
    assert best_window(arrivals([80_000.0] * 20), 600, **BOUNDS) <= 300


SLEEP = SleepRung(kind=SleepKind.VLLM)


AUTO, UNKNOWN = AutoWindows(), WakeTimes()


def windows(*, paid="1.00", auto=AUTO, wake=UNKNOWN, **ladder):
    target = EndpointTarget(deployment="a", service="a")
    spec = EndpointSpec(target=target, ladder=LadderSpec(auto=auto, **ladder))
    return windows_of(spec, WindowInputs(wake=wake, arrivals=Arrivals(), paid_per_hour=paid))


def test_without_auto_they_are_as_the_endpoint_says():
    fixed = windows(auto=None, sleep=SLEEP, keep_lease_seconds=7)
    assert msgspec.to_builtins(fixed) == {"ready": 300, "asleep": 900, "stopped": 7}
    assert msgspec.to_builtins(windows(auto=None))["asleep"] == 0


def test_a_dearer_gpu_has_a_shorter_window():
    lengths = [windows(paid=paid).ready for paid in ("0.10", "1.00", "10.00", "1000.00")]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_each_rung_lasts_as_long_as_the_next_wake_is_worth_avoiding():
    wake = WakeTimes(asleep=2_000, stopped=20_000, released=90_000)
    rungs = windows(wake=wake, sleep=SLEEP, keep_lease_seconds=1)
    plain = windows(wake=wake)
    assert rungs.ready < plain.ready
    assert rungs.asleep > 1
    assert rungs.ready + rungs.asleep + rungs.stopped <= plain.ready + 2
