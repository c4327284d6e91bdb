"""
The status of a PodDisruptionBudget: how many of its pods may be evicted now.

The API server's eviction takes one off at once and names the pod in `disruptedPods`; here that is
forgotten when the pod is going, or was not evicted after all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bidplane.api.kinds import DISRUPTION_BUDGET, Object
from bidplane.core.workloads.common import (
    condition,
    controller_of,
    is_going,
    is_ready,
    meta,
    phase_of,
    seconds,
    stamp,
    status_of,
    status_patch,
    with_condition,
)
from bidplane.core.workloads.plan import Plan, Record
from bidplane.wire.selectors import label_selector

ALLOWED = "DisruptionAllowed"
_ZEROS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
_EVICTED_SECONDS = 120.0  # after this, an eviction that did not delete its pod is forgotten


def plan(
    budget: Object, pods: Sequence[Object], owners: Mapping[tuple[str, str], Object], *, now: float
) -> Plan:
    """`pods` are those of its namespace; `owners` by kind and name may own them."""
    spec = budget["spec"]
    chosen = [pod for pod in pods if _is_chosen(spec.get("selector"), pod)]
    plan = Plan()
    if is_going(budget):
        return plan
    try:
        expected, desired = _wanted(spec, chosen, owners)
    except LookupError as error:
        words = f"Failed to calculate the number of expected pods: {error.args[0]}"
        reason = "CalculateExpectedPodCountFailed"
        plan.operations.append(Record(budget, reason, words, "Warning"))
        expected, desired = len(chosen), len(chosen)
    disrupted = _disrupted(budget, chosen, now)
    for since in disrupted.values():
        plan.wait(seconds(since) + _EVICTED_SECONDS - now)
    healthy = sum(
        is_ready(pod) and not is_going(pod) and str(meta(pod)["name"]) not in disrupted
        for pod in chosen
    )
    allowed = max(0, healthy - desired) if expected > 0 else 0
    enough = allowed > 0
    told = {
        "type": ALLOWED,
        "status": "True" if enough else "False",
        "reason": "SufficientPods" if enough else "InsufficientPods",
        "message": "",
        "lastTransitionTime": stamp(now),
        "observedGeneration": meta(budget).get("generation", 0),
    }
    known = condition(budget, ALLOWED)
    if known is not None and known.get("observedGeneration") != told["observedGeneration"]:
        if known.get("status") == told["status"]:
            told["lastTransitionTime"] = known.get("lastTransitionTime")
        conditions: list[Mapping[str, Any]] = [told]
    else:
        conditions = with_condition(status_of(budget).get("conditions") or (), told)
    status = {
        "conditions": conditions,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptedPods": disrupted,
        "disruptionsAllowed": allowed,
        "expectedPods": expected,
        "observedGeneration": meta(budget).get("generation", 0),
    }
    plan.status = status_patch(DISRUPTION_BUDGET, budget, status, zeros=_ZEROS)
    if plan.status is not None and not chosen:
        plan.operations.append(Record(budget, "NoPods", "No matching pods found"))
    return plan


def _is_chosen(selector: Mapping[str, Any] | None, pod: Object) -> bool:
    if selector is None or phase_of(pod) in ("Succeeded", "Failed"):
        return False
    return label_selector(selector).matches(pod)


def _wanted(
    spec: Mapping[str, Any], pods: Sequence[Object], owners: Mapping[tuple[str, str], Object]
) -> tuple[int, int]:
    """How many pods there should be, and how many of them must be healthy."""
    if "maxUnavailable" in spec:
        expected = _scale(pods, owners)
        return expected, max(0, expected - _share(spec["maxUnavailable"], expected))
    least = spec.get("minAvailable", 1)
    if isinstance(least, int):
        return len(pods), least
    expected = _scale(pods, owners)
    return expected, _share(least, expected)


def _share(value: int | str, whole: int) -> int:
    if isinstance(value, int):
        return value
    return math.ceil(int(value.rstrip("%")) * whole / 100)


def _scale(pods: Iterable[Object], owners: Mapping[tuple[str, str], Object]) -> int:
    """What the owners of the pods ask for together; `LookupError` for a pod without one."""
    found: dict[str, int] = {}
    for pod in pods:
        owner = controller_of(pod)
        if owner is None:
            raise LookupError(f"found no controllers for pod {meta(pod)['name']!r}")
        held = owners.get((owner["kind"], owner["name"]))
        above = controller_of(held) if held is not None else None
        if above is not None and (above["kind"], above["name"]) in owners:
            held = owners[above["kind"], above["name"]]  # a Deployment's ReplicaSets are one
        if held is None:
            raise LookupError(f"{owner['kind']}s.{owner['apiVersion']} does not implement scale")
        found[meta(held)["uid"]] = int(held["spec"].get("replicas", 1))
    return sum(found.values())


def _disrupted(budget: Object, pods: Iterable[Object], now: float) -> dict[str, str]:
    """The pods whose eviction was granted, and that are not going yet."""
    granted = status_of(budget).get("disruptedPods") or {}
    here = {str(meta(pod)["name"]) for pod in pods if not is_going(pod)}
    return {
        name: since
        for name, since in granted.items()
        if name in here and seconds(since) + _EVICTED_SECONDS > now
    }
