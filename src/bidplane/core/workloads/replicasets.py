"""
A ReplicaSet: as many pods as it says, whichever they are.

Pods that match and belong to nobody are adopted. When there are too many, those go first
that do least: unbound before bound, pending before running, unready before ready, then by
`controller.kubernetes.io/pod-deletion-cost`, then the youngest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bidplane.api.kinds import POD, REPLICA_SET, Object
from bidplane.core.workloads.common import (
    annotations_of,
    available_in,
    claim,
    condition,
    generate_name,
    is_active,
    is_going,
    is_ready,
    labels_of,
    meta,
    phase_of,
    pod_from,
    stamp,
    status_of,
    status_patch,
    with_condition,
)
from bidplane.core.workloads.plan import Create, Delete, Operation, Plan

BURST = 500  # pods made or deleted in one look
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


def plan(replica_set: Object, pods: Sequence[Object], *, now: float, refused: str = "") -> Plan:
    """`pods` are those of its namespace; `refused` says why a pod could not be made."""
    live = [pod for pod in pods if is_active(pod)]
    claimed = claim(REPLICA_SET, replica_set, POD, live)
    plan = Plan(operations=list(claimed.operations))
    if not is_going(replica_set):
        plan.operations.extend(_scale(replica_set, claimed.mine))
    terminating = sum(1 for pod in pods if is_going(pod) and _is_ours(replica_set, pod))
    plan.status = _status(replica_set, claimed.mine, terminating, now=now, failure=refused)
    wait = replica_set["spec"].get("minReadySeconds", 0)
    for pod in claimed.mine:
        if (left := available_in(pod, wait, now)) is not None and left > 0:
            plan.wait(left)
    return plan


def _is_ours(replica_set: Object, pod: Object) -> bool:
    owners = meta(pod).get("ownerReferences") or ()
    return any(
        owner.get("controller") and owner["uid"] == meta(replica_set)["uid"] for owner in owners
    )


def _scale(replica_set: Object, mine: Sequence[Object]) -> list[Operation]:
    difference = replica_set["spec"].get("replicas", 1) - len(mine)
    if difference > 0:
        return [_pod(replica_set) for _ in range(min(difference, BURST))]
    too_many = sorted(mine, key=deletion_rank)[: min(-difference, BURST)]
    return [Delete(POD, pod, replica_set) for pod in too_many]


def _pod(replica_set: Object) -> Create:
    pod = pod_from(replica_set["spec"]["template"], REPLICA_SET, replica_set)
    pod["metadata"]["generateName"] = generate_name(meta(replica_set)["name"])
    return Create(POD, pod, replica_set)


def deletion_rank(pod: Object) -> tuple[Any, ...]:
    """Least first."""
    try:
        cost = int(annotations_of(pod).get(DELETION_COST, "0"))
    except ValueError:
        cost = 0
    born = meta(pod).get("creationTimestamp") or ""
    return (
        bool(pod["spec"].get("nodeName")),
        _PHASES.get(phase_of(pod), 2),
        is_ready(pod),
        cost,
        _Later(born),
        meta(pod)["name"],
    )


class _Later(str):
    """A time that sorts before an earlier one."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)


def _status(
    replica_set: Object,
    mine: Sequence[Object],
    terminating: int,
    *,
    now: float,
    failure: str,
) -> Operation | None:
    wait = replica_set["spec"].get("minReadySeconds", 0)
    template = ((replica_set["spec"]["template"].get("metadata") or {}).get("labels") or {}).items()
    conditions = list(status_of(replica_set).get("conditions") or ())
    if failure:
        new = {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": failure,
            "lastTransitionTime": stamp(now),
        }
        conditions = with_condition(conditions, new)
    elif condition(replica_set, "ReplicaFailure"):
        conditions = [c for c in conditions if c["type"] != "ReplicaFailure"]
    return status_patch(
        REPLICA_SET,
        replica_set,
        {
            "replicas": len(mine),
            "fullyLabeledReplicas": sum(template <= labels_of(pod).items() for pod in mine),
            "readyReplicas": sum(is_ready(pod) for pod in mine),
            "availableReplicas": sum(available_in(pod, wait, now) == 0 for pod in mine),
            "terminatingReplicas": terminating,
            "observedGeneration": meta(replica_set).get("generation", 0),
            "conditions": conditions,
        },
        zeros=("replicas", "terminatingReplicas"),
    )
