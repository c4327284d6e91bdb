"""POST pods/NAME/eviction: a delete that asks the disruption budgets first."""

from __future__ import annotations

from typing import Any

from bidplane.plane.call import Call
from bidplane.plane.feed import Item
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.delete import delete, options
from bidplane.wire import status
from bidplane.wire.selectors import label_selector

_BUDGETS = "poddisruptionbudgets.policy"
_OVER = ("Succeeded", "Failed", "Pending")  # nobody misses these


async def evict(plane: Plane, call: Call, eviction: dict[str, Any]) -> None:
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    wanted = options(eviction.get("deleteOptions") or {}, {})
    call.dry_run = call.dry_run or "All" in (
        (eviction.get("deleteOptions") or {}).get("dryRun") or ()
    )
    meta, phase = latest.obj["metadata"], (latest.obj.get("status") or {}).get("phase")
    if "deletionTimestamp" not in meta and phase not in _OVER:
        await _ask(plane, call, latest)
    if not call.dry_run and "deletionTimestamp" not in meta:
        await _mark(plane, call)
    await delete(plane, call, wanted)


async def _ask(plane: Plane, call: Call, pod: Item) -> None:
    """429 unless the pod's budget has one to spare, which is then taken."""
    found = [
        budget
        for budget in plane.store.items(_BUDGETS, call.namespace)
        if (budget.obj.get("spec") or {}).get("selector") is not None
        and label_selector(budget.obj["spec"]["selector"]).matches(pod.obj)
    ]
    if len(found) > 1:
        words = "This pod has more than one PodDisruptionBudget, which the eviction subresource"
        raise status.refuse(500, "InternalError", f"{words} does not support.")
    if not found:
        return
    budget = plane.store.latest(found[0].key)
    if budget is None:
        return
    said = budget.obj.get("status") or {}
    left, need = said.get("disruptionsAllowed", 0), said.get("desiredHealthy", 0)
    name = budget.key.name
    words = ""
    if said.get("observedGeneration", 0) < budget.obj["metadata"].get("generation", 0):
        words = f"The disruption budget {name} is still being processed by the server."
    elif left < 1:
        healthy = said.get("currentHealthy", 0)
        words = (
            f"The disruption budget {name} needs {need} healthy pods and has {healthy} currently"
        )
    if words:
        raise status.refuse(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
            about=status.About(),
            causes=[status.Cause(words, reason="DisruptionBudget")],
            retry_after=10 if "processed" in words else 0,
        )
    if call.dry_run:
        return
    disrupted = {**(said.get("disruptedPods") or {}), call.name: plane.now()}
    after = {**said, "disruptionsAllowed": left - 1, "disruptedPods": disrupted}
    metadata = dict(budget.obj["metadata"])
    await plane.store.put(budget.key, {**budget.obj, "metadata": metadata, "status": after})


async def _mark(plane: Plane, call: Call) -> None:
    """Whoever looks at the pod's end sees why it came."""
    pod = plane.store.latest(call.key)
    if pod is None:
        raise status.not_found(call.about)
    told = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": plane.now(),
    }
    before = pod.obj.get("status") or {}
    others = [c for c in before.get("conditions") or () if c.get("type") != told["type"]]
    after = {**before, "conditions": [*others, told]}
    metadata = dict(pod.obj["metadata"])
    await plane.store.put(pod.key, {**pod.obj, "metadata": metadata, "status": after})
