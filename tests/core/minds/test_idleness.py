"""Which leases count as idle: what is joined for that, and when it is in doubt."""

from __future__ import annotations

import msgspec
import pytest

from bidplane.api.endpoint import EndpointPhase
from bidplane.api.idling.ladder import Rung
from bidplane.api.money import MICRO
from bidplane.api.times import rfc3339
from bidplane.cli.gate.idle import IdleLease, idle_leases, with_loads
from bidplane.core.gate.fleet import FleetAgent, FleetEndpoint, FleetLease, FleetPod, FleetState
from bidplane.core.minds.recurrence import Likelihood

NOW = 1_800_000_000.0
HOUR = 3600.0
HOUR_AGO = rfc3339(NOW - HOUR)
UNLIKELY = {"u-web": Likelihood(0.0, "no rhythm", 0)}


def lease(name: str = "l", **fields: object) -> FleetLease:
    usual = {"agent": "a", "pool": "h100", "node": "n1", "devices": 2, "rent": 3 * MICRO}
    key = {"namespace": "agent-a", "name": name, "uid": f"u-{name}"}
    return FleetLease(**{**key, **usual, **fields})  # type: ignore[arg-type]


WEB = FleetEndpoint(
    namespace="agent-a", name="web", uid="u-web", agent="a", service="web", holds=0, in_flight=0,
    phase=EndpointPhase.READY, awake=True, since=rfc3339(NOW - 2 * HOUR), last_request=HOUR_AGO,
    leases=("l",), rung=Rung.READY,
)  # fmt: skip


def rows(*leases: FleetLease, **service: object) -> list[IdleLease]:
    fleet = FleetState(
        leases=leases or (lease(),),
        agents=(FleetAgent(name="a", refill="1", priority=1),),
        pods=(FleetPod(namespace="agent-a", name="web-1", uid="p", agent="a", lease="l"),),
        endpoints=(msgspec.structs.replace(WEB, **service),) if service else (),
    )
    return idle_leases(fleet, NOW, UNLIKELY)


def test_a_service_that_nobody_asks_is_idle_and_each_signal_is_named() -> None:
    (row,) = rows(name="web")
    assert (row.state, row.doubt, row.cost, row.since) == ("Idle", "", "3.00", HOUR_AGO)
    assert row.pilot == "propose SleepEndpoint"
    assert row.evidence == (
        f"requests of Endpoint web: none waits or is in flight; the last was at {HOUR_AGO}",
        "application's queue: no spec.idle, so requests are all its work",
        "GPU counters: no whole window without work, or no report",
        "owner: agent a; on it: pod web-1",
    )


@pytest.mark.parametrize(
    "reason",
    [
        "QueueBusy: its application has 2 jobs",
        "QueueUnknown: GET /queue answered 500",
        "GpuBusy: a GPU works 80 % of the time",
        "GpuUnknown: no counter tells what its GPUs do",
    ],
)
def test_one_whose_application_is_busy_or_does_not_say_is_in_doubt(reason: str) -> None:
    (row,) = rows(own_queue=True, not_idle=reason)
    assert (row.state, row.doubt, row.cost, row.pilot) == ("Unknown", reason, "", "wait")
    assert row.evidence[1] == f"application's queue: {reason}"


def test_gpus_that_work_at_this_moment_put_it_in_doubt() -> None:
    web = {"name": "web"}
    busy = "GpuBusy: a GPU works 80 % of the time"
    (row,) = rows(lease(busy_percent=80.0), **web)
    assert (row.state, row.doubt, row.cost) == ("Unknown", busy, "")
    (row,) = rows(lease(busy_percent=80.0, unused_since=HOUR_AGO))
    assert (row.state, row.doubt) == ("Unknown", busy)
    (row,) = rows(lease(busy_percent=1.9), **web)
    assert row.state == "Idle"
    assert row.evidence[2] == "GPU counters: no whole window without work; 2 % now"
    (row,) = rows(lease(busy_percent=80.0, idle_since=HOUR_AGO))
    assert row.state == "Idle", "a moment of work does not end a window without any"


def test_one_that_was_not_asked_yet_is_in_doubt_and_is_asked_by_its_sleep() -> None:
    (row,) = rows(own_queue=True)
    assert row.doubt == "QueueUnknown: it is asked when its window has ended"
    assert row.pilot == "propose SleepEndpoint"


@pytest.mark.parametrize("rung", [Rung.ASLEEP, Rung.STOPPED])
def test_one_that_was_asked_and_went_down_its_ladder_is_idle(rung: Rung) -> None:
    (row,) = rows(own_queue=True, rung=rung)
    assert (row.state, row.cost) == ("Idle", "3.00")
    assert row.evidence[1] == "application's queue: empty when it was asked, before it slept"


@pytest.mark.parametrize("rung", [Rung.FALLING_ASLEEP, Rung.ROUSING, Rung.STARTING, None])
def test_one_between_two_rungs_is_in_doubt(rung: Rung | None) -> None:
    (row,) = rows(own_queue=True, rung=rung)
    assert row.state == "Unknown"


def test_one_with_requests_is_not_idle_whatever_counters_say() -> None:
    quiet = lease(idle_since=HOUR_AGO)
    assert rows(quiet, holds=1) == []
    assert rows(quiet, in_flight=1) == []
    assert rows(name="web", last_request=rfc3339(NOW - 59)) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"past_us": True}, "unknown, warmPath is direct"),
        ({"in_flight": None}, "unknown, no activator reports"),
    ],
)
def test_unknown_requests_put_it_in_doubt_where_counters_are_idle(
    fields: dict[str, object], why: str
) -> None:
    (row,) = rows(lease(idle_since=HOUR_AGO), **fields)
    assert (row.state, row.doubt) == ("Unknown", f"requests of Endpoint web: {why}")
    assert rows(**fields) == [], "nothing shows that it does nothing"


def test_the_most_expensive_first_and_those_in_doubt_last() -> None:
    leases = (
        lease("l", rent=500 * MICRO),
        lease("cheap", idle_since=rfc3339(NOW - 60)),
        lease("busy"),
        lease("dear", rent=90 * MICRO, idle_since=rfc3339(NOW - 2 * HOUR)),
        lease("empty", unused_since=HOUR_AGO),
    )
    found = rows(*leases, own_queue=True, not_idle="QueueBusy: 1")
    assert [(row.lease, row.cost, row.pilot) for row in found] == [
        ("dear", "180.00", "propose ReleaseLease"),
        ("empty", "3.00", "wait"),
        ("cheap", "0.05", "wait"),
        ("l", "", "wait"),
    ]
    assert found[0].since == rfc3339(NOW - 2 * HOUR)
    assert found[1].evidence == (
        "requests: it serves no Endpoint",
        "GPU counters: no whole window without work, or no report",
        f"owner: agent a; no pod is on it since {HOUR_AGO}",
    )


def test_the_loads_of_a_fleet_are_its_leases_by_agent_and_name() -> None:
    fleet = FleetState(leases=(lease(), lease("m")))
    loads = {("a", "m"): 5.0, ("b", "l"): 9.0}
    assert [x.busy_percent for x in with_loads(fleet, loads).leases] == [None, 5.0]


def test_an_owner_that_is_gone_is_named() -> None:
    fleet = FleetState(leases=(lease(unused_since=HOUR_AGO),))
    (row,) = idle_leases(fleet, NOW)
    assert row.evidence[-1] == f"owner: agent a, which is gone; no pod is on it since {HOUR_AGO}"
