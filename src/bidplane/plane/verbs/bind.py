"""POST pods/NAME/binding: assign a pod to a node, once."""

from __future__ import annotations

from typing import Any

from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.wire import status
from bidplane.wire.status import Cause


async def bind(plane: Plane, call: Call, binding: dict[str, Any]) -> None:
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    about = status.About("pods/binding", "", call.name, "Binding")
    node = (binding.get("target") or {}).get("name", "")
    uid = (binding.get("metadata") or {}).get("uid") or latest.uid
    if not node:
        raise status.invalid(about, [Cause("Required value", "target.name", "FieldValueRequired")])
    if uid != latest.uid:
        reason = (
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: {latest.uid}"
        )
        raise status.conflict(about, reason)
    pod, spec = latest.obj, latest.obj["spec"]
    if "deletionTimestamp" in pod["metadata"]:
        reason = f"pod {call.name} is being deleted, cannot be assigned to a host"
        raise status.conflict(about, reason)
    if spec.get("nodeName"):
        reason = f'pod {call.name} is already assigned to node "{spec["nodeName"]}"'
        raise status.conflict(about, reason)
    if spec.get("schedulingGates"):
        raise status.conflict(about, f"pod {call.name} has non-empty .spec.schedulingGates")
    if call.dry_run:
        return
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": plane.now(),
    }
    old = (pod.get("status") or {}).get("conditions") or []
    conditions = [condition for condition in old if condition["type"] != "PodScheduled"]
    annotations = (binding.get("metadata") or {}).get("annotations") or {}
    meta = dict(pod["metadata"])
    if annotations:
        meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
    bound = {
        **pod,
        "metadata": meta,
        "spec": {**spec, "nodeName": node},
        "status": {**(pod.get("status") or {}), "conditions": [*conditions, scheduled]},
    }
    await plane.store.put(call.key, bound)
