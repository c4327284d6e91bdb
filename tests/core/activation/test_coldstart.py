"""The parts of a cold start add up to it, whatever was seen of it and in whatever order."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import ColdStart, Milestones
from bidplane.api.times import rfc3339_micro
from bidplane.api.views import Pod
from bidplane.core.activation.coldstart import cold_start, passed

T0 = 1_700_000_000.0


def at(seconds: float) -> str:
    return rfc3339_micro(T0 + seconds)


def pod(name: str = "p", *, reason: str = "", node: str = "") -> Pod:
    conditions: list[dict[str, Any]] = []
    if reason:
        conditions.append({"type": "PodScheduled", "status": "False", "reason": reason})
    spec = {"nodeName": node} if node else {}
    return Pod({"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}})


def parts_of(start: ColdStart) -> list[int]:
    return [start.bid, start.bind, start.start, start.load, start.probe]


def test_each_part_is_the_time_to_its_milestone() -> None:
    milestones = Milestones(number=2, won=at(0.5), bound=at(0.6), started=at(1.6))
    start = cold_start(milestones, since=T0, probed=T0 + 4.6, answered=T0 + 4.61)
    assert start == ColdStart(total=4610, bid=500, bind=100, start=1000, load=3000, probe=10)


def test_a_milestone_that_nobody_saw_takes_no_time() -> None:
    start = cold_start(Milestones(), since=T0, probed=T0 + 2, answered=T0 + 3)
    assert start == ColdStart(total=3000, load=2000, probe=1000)


seconds = st.floats(-5, 30, allow_nan=False)


@given(st.lists(st.none() | seconds, min_size=3, max_size=3), seconds, st.floats(0, 30))
def test_the_parts_add_up(moments: list[float | None], probed: float, answered: float) -> None:
    won, bound, started = ("" if moment is None else at(moment) for moment in moments)
    milestones = Milestones(number=1, won=won, bound=bound, started=started)
    start = cold_start(milestones, since=T0, probed=T0 + probed, answered=T0 + answered)
    assert sum(parts_of(start)) == start.total == round((T0 + answered - T0) * 1000)
    assert min(parts_of(start)) >= 0


def test_the_first_time_of_a_milestone_stays() -> None:
    none = Milestones(number=3)
    assert passed(Milestones(), 3, [pod(reason="Bidding")], {}, now=T0) == none
    won = passed(none, 3, [pod(reason="Bidding"), pod("q", reason="Won")], {}, now=T0)
    assert won == msgspec.structs.replace(none, won=at(0))
    bound = passed(won, 3, [pod(node="lease")], {"p": ""}, now=T0 + 1)
    assert bound == msgspec.structs.replace(won, bound=at(1))
    started = passed(bound, 3, [pod(node="lease")], {"p": "10.0.0.1"}, now=T0 + 2)
    assert started == msgspec.structs.replace(bound, started=at(2))
    assert passed(started, 3, [pod(node="lease")], {"p": "10.0.0.1"}, now=T0 + 9) == started


def test_a_pod_that_is_bound_has_won() -> None:
    assert passed(Milestones(), 1, [pod(node="lease")], {}, now=T0).won == at(0)


def test_milestones_are_of_one_demand() -> None:
    before = Milestones(number=1, won=at(0), bound=at(1), started=at(2))
    assert passed(before, 2, [pod(reason="Bidding")], {}, now=T0) == Milestones(number=2)
