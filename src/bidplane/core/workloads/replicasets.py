"""
A ReplicaSet: the wanted number of interchangeable pods.

Pods that match and have no controller are adopted. When there are too many, the least useful are
deleted first: unbound before bound, pending before running, unready before ready, then by
`controller.kubernetes.io/pod-deletion-cost`, then the youngest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bidplane.api.kinds import POD, REPLICA_SET, Object
from bidplane.api.objects import (
    annotations_of,
    condition_of,
    is_deleted,
    labels_of,
    metadata_of,
    phase_of,
    status_of,
)
from bidplane.api.times import rfc3339
from bidplane.core.workloads.common import (
    available_in,
    claim,
    generate_name,
    is_active,
    is_ready,
    pod_from,
    status_patch,
    with_condition,
)
from bidplane.core.workloads.plan import CreateObject, Delete, Operation, WorkloadPlan

BURST = 500  # pods created or deleted in one plan
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


def plan(
    replica_set: Object, pods: Sequence[Object], *, now: float, refused: str = ""
) -> WorkloadPlan:
    """
    Plan for a ReplicaSet. `pods`: of its namespace; `refused`: why a pod could not be created.
    """
    live = [pod for pod in pods if is_active(pod)]
    claimed = claim(REPLICA_SET, replica_set, POD, live)
    plan = WorkloadPlan(operations=list(claimed.operations))
    if not is_deleted(replica_set):
        plan.operations.extend(_scale(replica_set, claimed.owned))
    terminating = sum(1 for pod in pods if is_deleted(pod) and _controls(replica_set, pod))
    plan.status = _status(replica_set, claimed.owned, terminating, now=now, failure=refused)
    wait = replica_set["spec"].get("minReadySeconds", 0)
    for pod in claimed.owned:
        if (seconds_left := available_in(pod, wait, now)) is not None and seconds_left > 0:
            plan.wait(seconds_left)
    return plan


def _controls(replica_set: Object, pod: Object) -> bool:
    """Return whether the ReplicaSet controls a pod."""
    owners = metadata_of(pod).get("ownerReferences") or ()
    return any(
        owner.get("controller") and owner["uid"] == metadata_of(replica_set)["uid"]
        for owner in owners
    )


def _scale(replica_set: Object, owned: Sequence[Object]) -> list[Operation]:
    """Return the creations or deletions that give the ReplicaSet its number of pods."""
    difference = replica_set["spec"].get("replicas", 1) - len(owned)
    if difference > 0:
        return [_pod(replica_set) for _ in range(min(difference, BURST))]
    too_many = sorted(owned, key=deletion_rank)[: min(-difference, BURST)]
    return [Delete(POD, pod, replica_set) for pod in too_many]


def _pod(replica_set: Object) -> CreateObject:
    pod = pod_from(replica_set["spec"]["template"], REPLICA_SET, replica_set)
    pod["metadata"]["generateName"] = generate_name(metadata_of(replica_set)["name"])
    return CreateObject(POD, pod, replica_set)


def deletion_rank(pod: Object) -> tuple[Any, ...]:
    """Return a sort key: the pod to delete first sorts first."""
    try:
        cost = int(annotations_of(pod).get(DELETION_COST, "0"))
    except ValueError:
        cost = 0
    created = metadata_of(pod).get("creationTimestamp") or ""
    return (
        bool(pod["spec"].get("nodeName")),
        _PHASES.get(phase_of(pod), 2),
        is_ready(pod),
        cost,
        _NewestFirst(created),
        metadata_of(pod)["name"],
    )


class _NewestFirst(str):
    """A time that sorts before earlier ones."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)


def _status(
    replica_set: Object,
    owned: Sequence[Object],
    terminating: int,
    *,
    now: float,
    failure: str,
) -> Operation | None:
    """Return the patch of the ReplicaSet's status, if it needs one."""
    wait = replica_set["spec"].get("minReadySeconds", 0)
    template = ((replica_set["spec"]["template"].get("metadata") or {}).get("labels") or {}).items()
    conditions = list(status_of(replica_set).get("conditions") or ())
    if failure:
        new = {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": failure,
            "lastTransitionTime": rfc3339(now),
        }
        conditions = with_condition(conditions, new)
    elif condition_of(replica_set, "ReplicaFailure"):
        conditions = [c for c in conditions if c["type"] != "ReplicaFailure"]
    return status_patch(
        REPLICA_SET,
        replica_set,
        {
            "replicas": len(owned),
            "fullyLabeledReplicas": sum(template <= labels_of(pod).items() for pod in owned),
            "readyReplicas": sum(is_ready(pod) for pod in owned),
            "availableReplicas": sum(available_in(pod, wait, now) == 0 for pod in owned),
            "terminatingReplicas": terminating,
            "observedGeneration": metadata_of(replica_set).get("generation", 0),
            "conditions": conditions,
        },
        zeros=("replicas", "terminatingReplicas"),
    )
