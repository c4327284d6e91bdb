"""
Refusal of objects that exceed a ResourceQuota.

Usage is counted between the decision to create and the creation, staged writes included: two
creations at once cannot both take the last of a quota.
"""

from __future__ import annotations

from bidplane.core.workloads import quotas
from bidplane.kube.client import Object
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.wire import status

QUOTAS = "resourcequotas"


def check(plane: Plane, call: Call, new: Object, old: Object | None = None) -> None:
    """Raise 403 when `new`, in place of `old`, would be more than a quota allows."""
    if not call.resource.namespaced or not plane.store.count(QUOTAS):
        return
    existing: list[Object] | None = None
    for quota in plane.store.items(QUOTAS, call.namespace):
        if existing is None:
            storage = call.resource.storage
            existing = [item.obj for item in plane.store.latest_items(storage, call.namespace)]
        refusal = quotas.refusal(quota.obj, call.resource.coordinates, new, old, existing)
        if refusal:
            raise status.forbidden(call.about, refusal)
