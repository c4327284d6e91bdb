"""The idle ladder: no rung is skipped, a wake is one operation, and a failure has a name."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import EndpointSpec, EndpointTarget
from bidplane.api.idling.ladder import LadderSpec, OnSleepFailure, Rung, SleepKind, SleepRung
from bidplane.core.idling.ladder import (
    DOWN,
    SHUT,
    TRANSITIONS,
    Event,
    Operation,
    Position,
    advance,
    below,
    holdings,
    start,
)

TARGET = EndpointTarget(deployment="a", service="a")


def spec(*, sleep=True, keep=60, on_failure=OnSleepFailure.STOP, kind=SleepKind.VLLM, level=1):
    rung = SleepRung(kind=kind, level=level, on_failure=on_failure) if sleep else None
    return EndpointSpec(target=TARGET, ladder=LadderSpec(sleep=rung, keep_lease_seconds=keep))


def walk(endpoint, events, rung=Rung.READY):
    position, operations = Position(rung, 0.0), []
    for now, event in enumerate(events, start=1):
        position, operation = advance(endpoint, position, event, now=float(now))
        operations.append(operation)
    return position, operations


IDLE, USED, SLEPT = Event.IDLE, Event.USED, Event.SLEPT


@pytest.mark.parametrize(
    ("sleep", "keep", "operations"),
    [
        (True, 60, [Operation.SLEEP, None, Operation.STOP, Operation.RELEASE]),
        (True, 0, [Operation.SLEEP, None, Operation.RELEASE, None]),
        (False, 60, [Operation.STOP, None, Operation.RELEASE, None]),
        (False, 0, [Operation.RELEASE, None, None, None]),
    ],
)
def test_an_idle_service_goes_down_the_rungs_that_it_has(sleep, keep, operations):
    position, done = walk(spec(sleep=sleep, keep=keep), [IDLE, SLEPT, IDLE, IDLE])
    assert done == operations
    assert position.rung is Rung.RELEASED


def test_a_request_while_it_falls_asleep_wakes_it_once_it_sleeps():
    position, done = walk(spec(), [IDLE, USED, USED, SLEPT, USED, Event.ROUSED])
    assert done == [Operation.SLEEP, None, None, Operation.ROUSE, None, None]
    assert (position.rung, position.origin, position.risen_since) == (
        Rung.READY,
        Rung.ASLEEP,
        2.0,  # when its first request came
    )


def test_a_failed_sleep_takes_the_next_rung_or_wakes_it_again():
    failed = [IDLE, Event.SLEEP_FAILED]
    position, done = walk(spec(), failed)
    assert (position.rung, done[-1], position.problem) == (
        Rung.STOPPED,
        Operation.STOP,
        "SleepFailed",
    )
    position, done = walk(spec(keep=0), failed)
    assert (position.rung, done[-1]) == (Rung.RELEASED, Operation.RELEASE)
    # It may be half asleep: it gets no request before it was woken.
    position, done = walk(spec(on_failure=OnSleepFailure.STAY), failed)
    assert (position.rung, done[-1]) == (Rung.ROUSING, Operation.ROUSE)
    position, _ = walk(spec(on_failure=OnSleepFailure.STAY), [*failed, Event.ROUSED])
    assert (position.rung, position.problem) == (Rung.READY, "SleepFailed")
    position, done = walk(spec(), [IDLE, USED, Event.SLEEP_FAILED])
    assert (position.rung, done[-1]) == (Rung.ROUSING, Operation.ROUSE)


def test_a_failed_wake_starts_it_anew():
    position, done = walk(spec(), [IDLE, SLEPT, USED, Event.ROUSE_FAILED, Event.ANSWERED])
    assert done[-2] is Operation.RESTART
    assert (position.rung, position.origin, position.problem) == (Rung.READY, Rung.ASLEEP, "")


def test_an_asleep_service_that_loses_its_gpu_does_not_bid_for_another():
    assert walk(spec(), [IDLE, SLEPT, Event.PODS_LOST])[1][-1] is Operation.RELEASE
    position, done = walk(spec(), [IDLE, USED, Event.PODS_LOST])
    assert (position.rung, done[-1]) == (Rung.STARTING, None)
    position, done = walk(spec(sleep=False), [IDLE, Event.LEASE_LOST])
    assert (position.rung, done[-1]) == (Rung.RELEASED, Operation.RELEASE)


@pytest.mark.parametrize("rung", list(Rung))
def test_a_service_that_is_given_up_gives_its_lease_back_from_every_rung(rung):
    at = Position(rung, 0.0)
    position, operation = advance(spec(), at, Event.GIVEN_UP, now=1.0)
    assert position.rung is Rung.RELEASED
    assert operation is (None if rung is Rung.RELEASED else Operation.RELEASE)


UP = (Operation.ROUSE, Operation.START, Operation.RESTART)
endpoints = st.builds(
    spec,
    sleep=st.booleans(),
    keep=st.sampled_from([0, 60]),
    on_failure=st.sampled_from(OnSleepFailure),
)
ORDER = [Rung.READY, Rung.ASLEEP, Rung.STOPPED, Rung.RELEASED]


@given(endpoints, st.lists(st.sampled_from(Event), max_size=40), st.sampled_from(Rung))
def test_whatever_happens(endpoint, events, first):
    position = start(first, 0.0)
    assert position.rung in ORDER or position.rung is Rung.STARTING
    for now, event in enumerate(events, start=1):
        after, operation = advance(endpoint, position, event, now=float(now))
        if after == position:
            assert operation is None
        if event is IDLE and position.rung in ORDER and after.rung in ORDER:
            assert ORDER.index(after.rung) >= ORDER.index(position.rung)
        if after.rung is Rung.READY and position.rung is not Rung.READY:
            assert event in (Event.ROUSED, Event.ANSWERED)
        if operation is Operation.SLEEP:
            assert endpoint.ladder.sleep is not None
        if operation is Operation.STOP:
            assert endpoint.ladder.keep_lease_seconds
        # Asked again, nothing new is done: a wake is one operation for any number of requests.
        again, repeated = advance(endpoint, after, USED, now=now + 0.5)
        if event is USED:
            assert (again, repeated) == (after, None)
        if repeated is not None:
            assert repeated in UP
            assert after.rung in DOWN
        position = after


@given(endpoints, st.sampled_from(Rung))
def test_from_every_rung_a_request_leads_back_to_ready(endpoint, rung):
    position = Position(rung, 0.0)
    for event in (USED, SLEPT, Event.ROUSED, Event.ANSWERED):
        position, _ = advance(endpoint, position, event, now=1.0)
    assert position.rung is Rung.READY


def test_every_rung_has_a_row_and_says_what_it_holds():
    assert set(TRANSITIONS) == set(Rung)
    both = SHUT & DOWN
    assert sorted(both) == [Rung.ASLEEP, Rung.FALLING_ASLEEP]
    for kind in SleepKind:
        for level in (1, 2):
            assert "pods and leases" in holdings(spec(kind=kind, level=level), Rung.ASLEEP)
    assert holdings(spec(), Rung.RELEASED) == "nothing"
    assert below(msgspec.structs.replace(spec(), ladder=LadderSpec()), Rung.READY) is Rung.RELEASED
