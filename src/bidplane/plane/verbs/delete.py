"""
DELETE: at once, after the grace period, or after the finalizers.

A pod bound to a node is only marked: the node stops it, then deletes it with grace 0.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.api.times import rfc3339
from bidplane.core.leases import requeue
from bidplane.kube.client import Object
from bidplane.plane.admission import policies
from bidplane.plane.call import SYSTEM, Call
from bidplane.plane.plane import Plane
from bidplane.plane.registry import CRDS
from bidplane.plane.storage.feed import Item, Key
from bidplane.plane.verbs.update import is_finished
from bidplane.wire import status
from bidplane.wire.kinds.namespaces import FINALIZER
from bidplane.wire.schema.crds import CLEANUP

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_PERMANENT = ("default", "kube-system", "kube-public")  # namespaces
_LAST_SECOND = 253402300799.0  # of the year 9999: RFC 3339 has no later one
_POLICIES = ("Background", "Foreground", "Orphan")


class DeleteOptions(msgspec.Struct, frozen=True, kw_only=True):
    grace_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: str = ""


def options(body: Object, query: dict[str, str], grace: int | None = None) -> DeleteOptions:
    """
    Return the options of a request's body and query; the query wins where both have a value.

    `grace` is the query's gracePeriodSeconds.
    """
    conditions = body.get("preconditions") or {}
    propagation = query.get("propagationPolicy") or body.get("propagationPolicy") or ""
    if propagation and propagation not in _POLICIES:
        raise status.bad_request(
            f'invalid propagationPolicy "{propagation}": use one of {", ".join(_POLICIES)}'
        )
    if body.get("orphanDependents"):
        propagation = "Orphan"
    return DeleteOptions(
        grace_seconds=body.get("gracePeriodSeconds") if grace is None else grace,
        uid=conditions.get("uid"),
        resource_version=conditions.get("resourceVersion"),
        propagation=propagation,
    )


async def delete(plane: Plane, call: Call, delete_options: DeleteOptions) -> tuple[Item, bool]:
    """Return the last state of the object, and whether it is gone."""
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    _check_preconditions(call, delete_options, latest)
    if call.resource.storage == "namespaces" and call.name in _PERMANENT:
        raise status.forbidden(call.about, "this namespace may not be deleted")
    if not call.subresource:
        policies.enforce(plane, call, "DELETE", None, call.to_requested_version(latest.obj))
    grace = _grace_seconds(call, delete_options, latest.obj)
    meta = dict(latest.obj["metadata"])
    obj = {**latest.obj, "metadata": meta}
    _set_deletion_time(plane, obj, meta, grace)
    _set_propagation_finalizers(plane, call, delete_options, meta)
    if call.resource.storage == "namespaces":
        obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        _hold_until_empty(plane, call, obj)
    is_gone = is_finished(obj)
    if call.resource.storage == "pods" and call.user is not SYSTEM and not call.dry_run:
        await _delete_saved_template(plane, latest)
    if call.dry_run:
        return Item(latest.key, obj, latest.raw, latest.created, latest.revision), is_gone
    if is_gone:
        return await plane.store.remove(call.key, latest.obj), True
    if meta == latest.obj["metadata"]:
        await plane.store.settle(call.key)
        return latest, False  # already on its way
    return await plane.store.put(call.key, obj), False


def _hold_until_empty(plane: Plane, call: Call, namespace: dict[str, Any]) -> None:
    """Give a namespace back the finalizer that empties it, if it has none and is not empty."""
    spec = namespace.get("spec") or {}
    finalizers = spec.get("finalizers") or []
    if FINALIZER not in finalizers and next(plane.store.in_namespace(call.name), None) is not None:
        namespace["spec"] = {**spec, "finalizers": [*finalizers, FINALIZER]}


async def _delete_saved_template(plane: Plane, pod: Item) -> None:
    """Delete the template of a pod that is being evicted, so that no successor is created."""
    template = plane.store.latest(
        Key("podtemplates", pod.key.namespace, requeue.template_name(pod.uid))
    )
    if template is not None:
        await plane.store.remove(template.key, template.obj)


def _check_preconditions(call: Call, delete_options: DeleteOptions, latest: Item) -> None:
    # Upstream names the kind here, not the resource.
    """Raise 409 when the object has another uid or revision than the request demands."""
    about = status.About(call.resource.kind, call.resource.group, call.name)
    if delete_options.uid not in (None, "", latest.uid):
        reason = (
            f"the UID in the precondition ({delete_options.uid}) does not match the UID in record"
            f" ({latest.uid}). The object might have been deleted and then recreated"
        )
        raise status.conflict(about, reason)
    if delete_options.resource_version not in (None, "", str(latest.revision)):
        reason = (
            f"the ResourceVersion in the precondition ({delete_options.resource_version}) does not"
            f" match the ResourceVersion in record ({latest.revision}). The object might have been"
            " modified"
        )
        raise status.conflict(about, reason)


def _grace_seconds(call: Call, delete_options: DeleteOptions, obj: Object) -> int:
    """Return the seconds that a pod has to stop; 0 for other kinds."""
    if call.resource.storage != "pods":
        return 0
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0  # nothing runs
    if delete_options.grace_seconds is not None:
        return max(0, delete_options.grace_seconds)
    return int(spec.get("terminationGracePeriodSeconds", 30))


def _set_deletion_time(plane: Plane, obj: Object, meta: dict[str, Any], grace: int) -> None:
    """Set deletionTimestamp and grace period; a second delete may only shorten the grace."""
    before = meta.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" in meta and (before is None or before <= grace):
        return
    if "deletionTimestamp" not in meta and "generation" in meta:
        meta["generation"] += 1
    meta["deletionTimestamp"] = rfc3339(min(plane.clock.now() + grace, _LAST_SECOND))
    meta["deletionGracePeriodSeconds"] = grace


def _set_propagation_finalizers(
    plane: Plane, call: Call, delete_options: DeleteOptions, meta: dict[str, Any]
) -> None:
    """
    Add the finalizers for orphaning and foreground deletion; the garbage collector removes them.
    """
    finalizers = list(meta.get("finalizers") or ())
    finalizer = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(delete_options.propagation)
    if delete_options.propagation:
        finalizers = [name for name in finalizers if name not in (ORPHAN, FOREGROUND)]
    if call.resource.storage == CRDS and CLEANUP not in finalizers:
        finalizers.append(CLEANUP)  # its objects go first
    # Without dependents there is nothing to wait for.
    if finalizer and plane.dependents.get(meta.get("uid", "")):
        finalizers.append(finalizer)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
