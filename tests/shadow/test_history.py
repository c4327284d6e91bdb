"""A recorded week, played through a real Prometheus, counted by Bidplane and by a referee."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.core.shadow.idle import use_by_day, use_by_owner
from bidplane.core.shadow.model import ClusterRecording
from bidplane.core.shadow.waiting import waiting_by_size
from bidplane.shadow.history import read_history
from bidplane.telemetry.prometheus import PrometheusReader
from shadow import week as weeks
from shadow.conftest import Play

STEP = 300


def recorded(url: str, week: weeks.Week) -> ClusterRecording:
    async def whole() -> ClusterRecording:
        reader = PrometheusReader(url)
        try:
            return await read_history(
                reader,
                "test",
                begin=week.begin,
                end=week.end,
                step=STEP,
                resource="nvidia.com/gpu",
                below=1.0,
            )
        finally:
            await reader.close()

    return asyncio.run(whole())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "renamed", "engine"), [(1, False, False), (2, True, True)], ids=["plain", "renamed"]
)
def test_idle_hours_are_the_referees(play: Play, seed: int, renamed: bool, engine: bool) -> None:
    week = weeks.draw(seed)
    url = play(weeks.openmetrics(week, renamed=renamed, engine=engine))
    recording = recorded(url, week)
    ours = {
        (owner.namespace, owner.owner): {
            "allocated": round(3600 * owner.hours.allocated),
            "busy": round(3600 * owner.hours.busy),
            "idle": round(3600 * owner.hours.idle),
        }
        for owner in use_by_owner(recording)
    }
    assert ours == weeks.count(week, step=STEP)
    assert sum(total["idle"] for total in ours.values()) > 100 * 3600
    by_day = use_by_day(recording)
    assert len(by_day) == 8, "a week that begins in the middle of a day"
    assert sum(day.hours.idle for day in by_day) * 3600 == pytest.approx(
        sum(total["idle"] for total in ours.values())
    )
    assert [gap.source for gap in recording.gaps] == []
    assert {node.name: node.gpus for node in recording.nodes} == week.nodes
    waits = {
        pod.uid: pod.scheduled - pod.created
        for pod in week.pods
        if pod.scheduled is not None and pod.scheduled >= week.begin
    }
    rows = waiting_by_size(recording)
    assert sum(row.scheduled for row in rows) == len(waits)
    assert sum(row.average * row.scheduled for row in rows) == pytest.approx(sum(waits.values()))
    assert sum(row.pending for row in rows) == sum(pod.scheduled is None for pod in week.pods)
