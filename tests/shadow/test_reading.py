"""Reading a history from a Prometheus that refuses large queries, or lacks series."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.core.shadow import queries
from bidplane.core.shadow.model import ClusterRecording
from bidplane.errors import UserError
from bidplane.shadow.history import read_history
from bidplane.telemetry.dcgm import Point
from bidplane.telemetry.prometheus import MetricHistory, QueryRefused

BEGIN, STEP = 86_400 * 20_000, 300
END = BEGIN + 86_400
POD = {"namespace": "ns", "pod": "p", "uid": "u"}


class ScriptedSource:
    """A Prometheus with one pod, and one device; it refuses windows of more than `most` seconds."""

    def __init__(self, *, most: int = 86_400, without: str = "-", instance: str = "") -> None:
        self.windows: list[tuple[float, float]] = []
        self._most, self._without, self._instance = most, without, instance

    async def at(self, query: str, moment: float) -> list[Point]:
        if self._without in query:
            return []
        if "timestamp" in query:
            return [Point("", POD, moment)]
        for metric, value in (
            (queries.ALLOCATABLE, 8.0),
            (queries.CREATED, BEGIN + 60.0),
            (queries.SCHEDULED, BEGIN + 600.0),
        ):
            if f"({metric}" in query:
                return [Point("", {**POD, "node": "n1"}, value)]
        if f"({queries.COMPLETED}" in query:
            return []
        if f"({queries.OWNER}" in query:
            return [Point("", {**POD, "owner_kind": "Job", "owner_name": "train"}, 1.0)]
        return [Point("", POD, 1.0)]

    async def over(self, query: str, *, begin: float, end: float, step: int) -> list[MetricHistory]:
        if end - begin + step > self._most:
            raise QueryRefused("too many samples")
        if self._without in query or queries.UTILISATION not in query:
            return []
        self.windows.append((begin, end))
        labels = {**POD, "UUID": "GPU-1", "GPU_I_ID": self._instance, "Hostname": "n1"}
        moments = range(int(begin), int(end) + 1, step)
        return [MetricHistory(labels, [(float(moment), 0.0) for moment in moments])]


def recorded(source: ScriptedSource) -> ClusterRecording:
    return asyncio.run(
        read_history(
            source, "test", begin=BEGIN, end=END, step=STEP, resource="nvidia.com/gpu", below=1.0
        )
    )


@pytest.mark.parametrize("most", [86_400, 43_200, 5400])
def test_a_day_that_is_too_much_is_halved(most: int) -> None:
    source = ScriptedSource(most=most)
    recording = recorded(source)
    (use,) = recording.uses
    assert [(s.begin, s.end, s.idle) for s in use.stretches] == [(BEGIN, END, True)]
    assert all(end - begin + STEP <= most for begin, end in source.windows)
    (pod,) = recording.pods
    assert (pod.gpus, pod.owner, pod.ended) == (1, "Job/train", None)


def test_what_is_refused_in_hours_too_is_refused() -> None:
    with pytest.raises(QueryRefused, match="too many samples"):
        recorded(ScriptedSource(most=600))


@pytest.mark.parametrize(
    ("series", "words"),
    [
        (queries.SCHEDULED, "how long pods waited is unknown"),
        (queries.CREATED, "how long pods waited is unknown"),
        (queries.OWNER, "an owner of its own"),
        (queries.ALLOCATABLE, "the fleet is taken to be"),
        ("DCGM_FI", "no GPU counts as idle"),
    ],
)
def test_a_missing_series_is_named_with_its_cost(series: str, words: str) -> None:
    recording = recorded(ScriptedSource(without=series))
    costs = [gap.cost for gap in recording.gaps if series in gap.source]
    assert len(costs) == 1
    assert words in costs[0]
    assert recording.waits_known == (series not in (queries.SCHEDULED, queries.CREATED))


def test_a_pod_without_requests_has_the_devices_that_dcgm_names() -> None:
    recording = recorded(ScriptedSource(without=queries.REQUESTS))
    (pod,) = recording.pods
    assert (pod.name, pod.gpus, pod.scheduled) == ("p", 1, BEGIN + 600)


def test_mig_instances_are_left_out_and_named() -> None:
    with pytest.raises(UserError, match="only pods with MIG instances \\(1\\)"):
        recorded(ScriptedSource(without=queries.REQUESTS, instance="7"))
