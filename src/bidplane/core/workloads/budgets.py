"""
The status of a PodDisruptionBudget: how many of its pods may be evicted now.

An eviction at the API server takes one off at once and names the pod in `disruptedPods`. The entry
is removed here when the pod is being deleted, or was not evicted after all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bidplane.api.kinds import DISRUPTION_BUDGET, Object
from bidplane.api.objects import (
    condition_of,
    controller_of,
    is_deleted,
    metadata_of,
    phase_of,
    status_of,
)
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.workloads.common import is_ready, status_patch, with_condition
from bidplane.core.workloads.plan import RecordEvent, WorkloadPlan
from bidplane.wire.selectors import label_selector

ALLOWED = "DisruptionAllowed"
_ZEROS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
_EVICTED_SECONDS = 120.0  # after this, an eviction that did not delete its pod is dropped


def plan(
    budget: Object, pods: Sequence[Object], owners: Mapping[tuple[str, str], Object], *, now: float
) -> WorkloadPlan:
    """Plan a budget's status. `pods`: of its namespace; `owners`: their possible owners."""
    spec = budget["spec"]
    chosen = [pod for pod in pods if _is_selected(spec.get("selector"), pod)]
    plan = WorkloadPlan()
    if is_deleted(budget):
        return plan
    try:
        expected, desired = _expected_and_healthy(spec, chosen, owners)
    except LookupError as error:
        message = f"Failed to calculate the number of expected pods: {error.args[0]}"
        reason = "CalculateExpectedPodCountFailed"
        plan.operations.append(RecordEvent(budget, reason, message, "Warning"))
        expected, desired = len(chosen), len(chosen)
    disrupted = _disrupted(budget, chosen, now)
    for since in disrupted.values():
        plan.wait(parse_rfc3339(since) + _EVICTED_SECONDS - now)
    healthy = sum(
        is_ready(pod) and not is_deleted(pod) and str(metadata_of(pod)["name"]) not in disrupted
        for pod in chosen
    )
    allowed = max(0, healthy - desired) if expected > 0 else 0
    enough = allowed > 0
    allowed_condition = {
        "type": ALLOWED,
        "status": "True" if enough else "False",
        "reason": "SufficientPods" if enough else "InsufficientPods",
        "message": "",
        "lastTransitionTime": rfc3339(now),
        "observedGeneration": metadata_of(budget).get("generation", 0),
    }
    current = condition_of(budget, ALLOWED)
    if (
        current is not None
        and current.get("observedGeneration") != allowed_condition["observedGeneration"]
    ):
        if current.get("status") == allowed_condition["status"]:
            allowed_condition["lastTransitionTime"] = current.get("lastTransitionTime")
        conditions: list[Mapping[str, Any]] = [allowed_condition]
    else:
        conditions = with_condition(status_of(budget).get("conditions") or (), allowed_condition)
    status = {
        "conditions": conditions,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptedPods": disrupted,
        "disruptionsAllowed": allowed,
        "expectedPods": expected,
        "observedGeneration": metadata_of(budget).get("generation", 0),
    }
    plan.status = status_patch(DISRUPTION_BUDGET, budget, status, zeros=_ZEROS)
    if plan.status is not None and not chosen:
        plan.operations.append(RecordEvent(budget, "NoPods", "No matching pods found"))
    return plan


def _is_selected(selector: Mapping[str, Any] | None, pod: Object) -> bool:
    """Return whether a budget's selector applies to a pod that has not ended."""
    if selector is None or phase_of(pod) in ("Succeeded", "Failed"):
        return False
    return label_selector(selector).matches(pod)


def _expected_and_healthy(
    spec: Mapping[str, Any], pods: Sequence[Object], owners: Mapping[tuple[str, str], Object]
) -> tuple[int, int]:
    """Return how many pods there should be, and how many of them must be healthy."""
    if "maxUnavailable" in spec:
        expected = _expected_replicas(pods, owners)
        return expected, max(0, expected - _share(spec["maxUnavailable"], expected))
    least = spec.get("minAvailable", 1)
    if isinstance(least, int):
        return len(pods), least
    expected = _expected_replicas(pods, owners)
    return expected, _share(least, expected)


def _share(value: int | str, whole: int) -> int:
    """Return a number of pods, or a percentage of `whole` rounded up."""
    if isinstance(value, int):
        return value
    return math.ceil(int(value.rstrip("%")) * whole / 100)


def _expected_replicas(pods: Iterable[Object], owners: Mapping[tuple[str, str], Object]) -> int:
    """Return the replicas of the pods' owners together; `LookupError` for a pod without one."""
    replicas: dict[str, int] = {}
    for pod in pods:
        owner = controller_of(pod)
        if owner is None:
            raise LookupError(f"found no controllers for pod {metadata_of(pod)['name']!r}")
        scalable = owners.get((owner["kind"], owner["name"]))
        controller = controller_of(scalable) if scalable is not None else None
        if controller is not None and (controller["kind"], controller["name"]) in owners:
            scalable = owners[
                controller["kind"], controller["name"]
            ]  # count a Deployment's ReplicaSets as one
        if scalable is None:
            raise LookupError(f"{owner['kind']}s.{owner['apiVersion']} does not implement scale")
        replicas[metadata_of(scalable)["uid"]] = int(scalable["spec"].get("replicas", 1))
    return sum(replicas.values())


def _disrupted(budget: Object, pods: Iterable[Object], now: float) -> dict[str, str]:
    """Return the pods whose eviction was granted and that are not being deleted yet."""
    granted = status_of(budget).get("disruptedPods") or {}
    live = {str(metadata_of(pod)["name"]) for pod in pods if not is_deleted(pod)}
    return {
        name: since
        for name, since in granted.items()
        if name in live and parse_rfc3339(since) + _EVICTED_SECONDS > now
    }
