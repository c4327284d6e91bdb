"""The Events of a CronJob: the times it cannot keep, and the Jobs it did not expect."""

from __future__ import annotations

from typing import Any

from bidplane.core.workloads.cronjobs import SCHEDULED, plan
from bidplane.core.workloads.plan import CreateObject, RecordEvent

Json = dict[str, Any]
NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z


def cron_job(created: str = "2027-01-15T07:59:30Z", **spec: Any) -> Json:
    return {
        "metadata": {
            "name": "tick",
            "namespace": "default",
            "uid": "uid-of-tick",
            "creationTimestamp": created,
        },
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {}}, **spec},
    }


def job(name: str, annotations: Json) -> Json:
    owner = {"uid": "uid-of-tick", "controller": True, "kind": "CronJob", "name": "tick"}
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "resourceVersion": "7",
    }
    return {
        "metadata": {**metadata, "annotations": annotations, "ownerReferences": [owner]},
        "spec": {},
    }


def reasons(cron: Json, *jobs: Json) -> list[str]:
    operations = plan(cron, jobs, now=NOW).operations
    return [operation.reason for operation in operations if isinstance(operation, RecordEvent)]


def starts(cron: Json, *jobs: Json) -> int:
    operations = plan(cron, jobs, now=NOW).operations
    return sum(isinstance(operation, CreateObject) for operation in operations)


def test_a_schedule_that_cannot_be_read_starts_nothing_and_says_so() -> None:
    cron = cron_job(schedule="every day")
    assert reasons(cron) == ["UnparseableSchedule"]
    assert starts(cron) == 0


def test_a_job_that_runs_keeps_the_next_one_off_where_the_policy_forbids_two() -> None:
    running = job("tick-1", {SCHEDULED: "2027-01-15T07:59:00Z"})
    assert reasons(cron_job(concurrencyPolicy="Forbid"), running) == ["JobAlreadyActive"]
    assert starts(cron_job(concurrencyPolicy="Forbid"), running) == 0
    assert starts(cron_job(), running) == 1


def test_a_job_that_was_not_scheduled_is_named() -> None:
    assert "UnexpectedJob" in reasons(cron_job(), job("by-hand", {}))


def test_a_long_absence_is_told_once_and_the_latest_time_is_kept() -> None:
    away = cron_job(created="2027-01-14T08:00:00Z")
    assert reasons(away).count("TooManyMissedTimes") == 1
    assert starts(away) == 1
    assert "TooManyMissedTimes" not in reasons(cron_job(created="2027-01-15T06:30:00Z"))
