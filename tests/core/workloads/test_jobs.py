"""Plans for a Job at the limits: of time, of indexes, and of pods counted at once."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import JOB, POD
from bidplane.api.times import parse_rfc3339
from bidplane.core.workloads.jobs import TRACKING, plan
from bidplane.core.workloads.plan import CreateObject, Patch, WorkloadPlan

Json = dict[str, Any]
ENDED = "2026-11-01T00:00:00Z"
NOW = parse_rfc3339(ENDED)
LABELS = {"batch.kubernetes.io/controller-uid": "j1"}
INDEX = "batch.kubernetes.io/job-completion-index"


def job(**spec: Any) -> Json:
    template = {"metadata": {"labels": LABELS}, "spec": {"restartPolicy": "Never"}}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {"name": "work", "namespace": "d", "uid": "j1"},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 6,
            "selector": {"matchLabels": LABELS},
            "template": template,
            **spec,
        },
        "status": {"startTime": ENDED},
    }


def ended_pod(number: int, phase: str, *, index: int | None = None) -> Json:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "work", "uid": "j1"}
    state = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 1, "finishedAt": ENDED}}
    return {
        "apiVersion": "v1",
        "kind": POD.kind,
        "metadata": {
            "name": f"work-{number}",
            "namespace": "d",
            "uid": f"p{number}",
            "labels": LABELS,
            "annotations": {} if index is None else {INDEX: str(index)},
            "ownerReferences": [{**owner, "controller": True}],
            "finalizers": [TRACKING],
        },
        "spec": {},
        "status": {"phase": phase, "containerStatuses": [{"name": "c", "state": state}]},
    }


def created(planned: WorkloadPlan) -> int:
    return sum(isinstance(operation, CreateObject) for operation in planned.operations)


def status(planned: WorkloadPlan) -> Json:
    change = planned.operations[0]
    assert isinstance(change, Patch)
    assert change.subresource == "status"
    return dict(change.change["status"])


@pytest.mark.parametrize(("seconds", "replaced"), [(9.0, 0), (10.0, 1), (11.0, 1)])
def test_a_pod_that_failed_is_replaced_ten_seconds_later(seconds: float, replaced: int) -> None:
    failed = ended_pod(1, "Failed")
    planned = plan(job(), [failed], now=NOW + seconds)
    assert created(planned) == replaced
    assert planned.again == (None if replaced else 10.0 - seconds)


@pytest.mark.parametrize(("index", "completed"), [(0, "0"), (2, "2"), (3, None)])
def test_only_indexes_of_the_job_are_completed(index: int, completed: str | None) -> None:
    indexed = job(completionMode="Indexed", completions=3, parallelism=3)
    planned = plan(indexed, [ended_pod(1, "Succeeded", index=index)], now=NOW)
    assert status(planned).get("completedIndexes") == completed


def test_five_hundred_ended_pods_are_counted_at_once() -> None:
    many = job(completions=600, parallelism=600)
    pods = [ended_pod(number, "Succeeded") for number in range(501)]
    uncounted = status(plan(many, pods, now=NOW))["uncountedTerminatedPods"]
    assert len(uncounted["succeeded"]) == 500
