"""POST pods/NAME/eviction: a delete that respects the disruption budgets."""

from __future__ import annotations

from typing import Any

from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Item
from bidplane.plane.verbs.delete import delete, options
from bidplane.wire import status
from bidplane.wire.selectors import label_selector

_BUDGETS = "poddisruptionbudgets.policy"
_UNGUARDED_PHASES = ("Succeeded", "Failed", "Pending")  # a budget does not protect these


async def evict(plane: Plane, call: Call, eviction: dict[str, Any]) -> None:
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    delete_options = options(eviction.get("deleteOptions") or {}, {})
    call.dry_run = call.dry_run or "All" in (
        (eviction.get("deleteOptions") or {}).get("dryRun") or ()
    )
    meta, phase = latest.obj["metadata"], (latest.obj.get("status") or {}).get("phase")
    if "deletionTimestamp" not in meta and phase not in _UNGUARDED_PHASES:
        await _take_disruption(plane, call, latest)
    if not call.dry_run and "deletionTimestamp" not in meta:
        await _add_condition(plane, call)
    await delete(plane, call, delete_options)


async def _take_disruption(plane: Plane, call: Call, pod: Item) -> None:
    """Use up one allowed disruption of the pod's budget; raise 429 when it has none."""
    budgets = [
        budget
        for budget in plane.store.items(_BUDGETS, call.namespace)
        if (budget.obj.get("spec") or {}).get("selector") is not None
        and label_selector(budget.obj["spec"]["selector"]).matches(pod.obj)
    ]
    if len(budgets) > 1:
        problem = "This pod has more than one PodDisruptionBudget, which the eviction subresource"
        raise status.refuse(500, "InternalError", f"{problem} does not support.")
    if not budgets:
        return
    budget = plane.store.latest(budgets[0].key)
    if budget is None:
        return
    budget_status = budget.obj.get("status") or {}
    allowed, desired = (
        budget_status.get("disruptionsAllowed", 0),
        budget_status.get("desiredHealthy", 0),
    )
    name = budget.key.name
    problem = ""
    if budget_status.get("observedGeneration", 0) < budget.obj["metadata"].get("generation", 0):
        problem = f"The disruption budget {name} is still being processed by the server."
    elif allowed < 1:
        healthy = budget_status.get("currentHealthy", 0)
        problem = (
            f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        )
    if problem:
        raise status.refuse(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
            about=status.About(),
            causes=[status.Cause(problem, reason="DisruptionBudget")],
            retry_after=10 if "processed" in problem else 0,
        )
    if call.dry_run:
        return
    disrupted = {**(budget_status.get("disruptedPods") or {}), call.name: plane.now()}
    after = {**budget_status, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}
    metadata = dict(budget.obj["metadata"])
    await plane.store.put(budget.key, {**budget.obj, "metadata": metadata, "status": after})


async def _add_condition(plane: Plane, call: Call) -> None:
    """Add the condition DisruptionTarget, which says why the pod ends."""
    pod = plane.store.latest(call.key)
    if pod is None:
        raise status.not_found(call.about)
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": plane.now(),
    }
    before = pod.obj.get("status") or {}
    other_conditions = [
        c for c in before.get("conditions") or () if c.get("type") != condition["type"]
    ]
    after = {**before, "conditions": [*other_conditions, condition]}
    metadata = dict(pod.obj["metadata"])
    await plane.store.put(pod.key, {**pod.obj, "metadata": metadata, "status": after})
