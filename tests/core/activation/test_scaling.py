"""Replicas by traffic: more at once, fewer after a window of less, and drained first."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import Demand, Drain, EndpointSpec, TargetRate
from bidplane.api.endpoint import EndpointTarget as Target
from bidplane.api.views import Pod
from bidplane.core.activation import scaling

WINDOW = 60


def spec(**fields):
    target = Target(deployment="llm", service="llm")
    given = {"replicas": 1, "max_replicas": 5, "target_concurrency": 10, "idle_seconds": WINDOW}
    return EndpointSpec(target=target, **{**given, **fields})


def demand(concurrency=0, **fields):
    return Demand(number=2, awake=True, concurrency=concurrency, **fields)


def pods(*names):
    metadata = {"creationTimestamp": "2026-11-18T20:00:00Z"}
    spec, status = {"nodeName": "n"}, {"phase": "Running"}
    return [
        Pod({"metadata": {"name": n, **metadata}, "spec": spec, "status": status}) for n in names
    ]


@pytest.mark.parametrize(
    ("fields", "concurrency", "recent", "count"),
    [
        ({}, 0, 0, 1),
        ({}, 10, 0, 1),
        ({}, 11, 0, 2),
        ({}, 1000, 0, 5),
        ({"replicas": 3}, 0, 0, 3),
        ({"max_replicas": 0}, 1000, 0, 1),
        ({"target_concurrency": 0}, 1000, 0, 1),
        ({"target_concurrency": 0, "target_rate": TargetRate(per_second=2)}, 0, 120, 1),
        ({"target_concurrency": 0, "target_rate": TargetRate(per_second=2)}, 0, 121, 2),
        # With both, the one that needs more counts.
        ({"target_rate": TargetRate(per_second=2, window_seconds=10)}, 35, 50, 4),
        ({"target_rate": TargetRate(per_second=2, window_seconds=10)}, 35, 100, 5),
    ],
)
def test_a_load_needs_so_many(fields, concurrency, recent, count):
    assert scaling.needed(spec(**fields), concurrency, recent) == count


class Scaler:
    """A controller's memory of one Endpoint."""

    def __init__(self, rules):
        self.rules, self.needs, self.current = rules, None, rules.replicas

    def report(self, now, asked):
        self.needs = scaling.observe(self.needs, self.rules, asked, now=now)
        self.current = scaling.target(self.rules, self.current, self.needs, now=now)
        return self.current


def test_more_come_at_once_and_fewer_after_a_window_of_less():
    scaler = Scaler(spec())
    assert scaler.report(0, demand(5)) == 1
    assert scaler.report(1, demand(35)) == 4
    assert scaler.report(30, demand(5)) == 4
    wait = scaling.wait_seconds(scaler.rules, 4, scaler.needs, now=30)
    assert wait == pytest.approx(60)  # it needed 4 until 30
    assert scaler.report(89, demand(15)) == 4
    assert scaler.report(91, demand(15)) == 2  # within the window 1 would not have sufficed
    assert scaler.report(149, demand(5)) == 2
    assert scaler.report(210, demand(5)) == 1
    assert scaling.wait_seconds(scaler.rules, 1, scaler.needs, now=210) == 0


def test_an_unknown_load_or_window_takes_nothing_away():
    restarted = Scaler(spec())
    restarted.current = 4
    assert restarted.report(0, None) == 4
    assert restarted.report(100, demand(0)) == 4
    assert restarted.report(159, demand(0)) == 4
    assert restarted.report(160, demand(0)) == 1
    rate = TargetRate(per_second=1, window_seconds=10)
    by_rate = Scaler(spec(target_concurrency=0, target_rate=rate))
    by_rate.current = 4
    for now in range(0, 500, 50):  # the activator has not counted for a whole window
        assert by_rate.report(now, demand(recent=0)) == 4
    by_rate.report(500, demand(recent=0, whole_window=True))
    assert by_rate.report(561, demand(recent=0, whole_window=True)) == 1


@given(
    loads=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 80)), min_size=1, max_size=40),
    most=st.integers(1, 6),
)
def test_never_too_few_and_no_flapping(loads, most):
    rules = spec(max_replicas=most)
    scaler, now, rises, falls = Scaler(rules), 0, [], []
    for step, concurrency in loads:
        now += step
        before = scaler.current
        after = scaler.report(now, demand(concurrency))
        assert min(math.ceil(concurrency / 10), most) <= after <= most
        assert after >= rules.replicas
        (rises if after > before else falls if after < before else []).append(now)
    # Between a rise and the next fall lies a whole window.
    for fall in falls:
        assert all(fall - rise >= WINDOW for rise in rises if rise < fall)


def test_a_pod_drains_then_is_free_then_is_removed():
    three = pods("a", "b", "c")
    first = scaling.plan(2, 3, three, Drain(), demand())
    assert (first.replicas, first.delete) == (None, ())
    (leaving,) = first.drain.pods
    assert first.drain.number == 1
    busy = scaling.plan(2, 3, three, first.drain, demand(drained=1))
    assert (busy.replicas, busy.drain) == (None, first.drain)
    # What the activator said of an earlier drain counts for nothing.
    stale = msgspec.structs.replace(first.drain, number=7)
    assert (
        scaling.plan(2, 3, three, stale, demand(drained=1, free_pods=(leaving,))).replicas is None
    )
    free = demand(drained=1, free_pods=(leaving,))
    removed = scaling.plan(2, 3, three, first.drain, free)
    assert (removed.replicas, removed.drain.removed) == (2, (leaving,))
    # Needed again before it is gone: another pod comes, and this one is not used.
    again = scaling.plan(3, 2, three, removed.drain, free)
    assert (again.replicas, again.drain.pods, again.delete) == (3, (leaving,), (leaving,))
    # A crash before the replicas were set drains no second pod.
    repeated = scaling.plan(2, 3, three, removed.drain, free)
    assert (repeated.replicas, repeated.drain) == (2, removed.drain)
    rest = [pod for pod in three if pod.name != leaving]
    done = scaling.plan(2, 2, rest, removed.drain, free)
    assert (done.replicas, done.drain.pods, done.delete) == (None, (), ())


def test_a_drain_that_is_not_needed_any_more_ends():
    three = pods("a", "b", "c")
    first = scaling.plan(2, 3, three, Drain(), demand())
    back = scaling.plan(3, 3, three, first.drain, demand(drained=1, free_pods=first.drain.pods))
    assert (back.drain.pods, back.drain.number, back.replicas) == ((), 2, None)


@given(
    wished=st.integers(1, 4),
    current=st.integers(1, 4),
    names=st.sets(st.sampled_from("abcde"), max_size=5),
    draining=st.sets(st.sampled_from("abcde")),
    removed=st.sets(st.sampled_from("abcde")),
    free=st.sets(st.sampled_from("abcde")),
    followed=st.booleans(),
)
def test_only_free_pods_are_removed(wished, current, names, draining, removed, free, followed):
    removed &= draining
    previous = Drain(number=3, pods=tuple(sorted(draining)), removed=tuple(sorted(removed)))
    asked = demand(drained=3 if followed else 2, free_pods=tuple(sorted(free)))
    live = pods(*sorted(names))
    step = scaling.plan(wished, current, live, previous, asked)
    new = set(step.drain.removed) - removed
    assert new <= (free & draining & names if followed else set())
    assert set(step.drain.removed) <= set(step.drain.pods) <= names
    assert set(step.delete) <= removed & names
    used = names - set(step.drain.pods)
    assert len(used) >= min(wished, len(names - removed))
    replicas = current if step.replicas is None else step.replicas
    assert replicas >= wished or wished > current
    # Fewer replicas than pods that may serve only if the pods without a place are removed.
    kept = names - set(step.drain.removed)
    assert replicas >= min(len(kept), current)


@given(
    times=st.lists(st.floats(0, 100, allow_nan=False), max_size=60),
    window=st.integers(1, 30),
    step=st.integers(1, 5),
)
def test_the_rate_counts_the_requests_of_its_window(times, window, step):
    rate = TargetRate(per_second=1, window_seconds=max(window, step), granularity_seconds=step)
    counted = scaling.RateWindow(rate, now=0)
    for at in sorted(times):
        counted.add(at)
    end = 100.0
    total = counted.total(end)
    first = math.floor((end - rate.window_seconds) / step)
    assert total == sum(1 for at in times if math.floor(at / step) > first)
    assert counted.is_whole(end)
    assert not scaling.RateWindow(rate, now=end - rate.window_seconds + 1).is_whole(end)
