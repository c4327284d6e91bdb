"""
DELETE: at once, after the grace period, or after the finalizers.

A pod bound to a node is only marked: the node stops it, then deletes it with grace 0.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.core import requeue
from bidplane.kube.client import Object
from bidplane.machinery.clock import rfc3339
from bidplane.plane.call import SYSTEM, Call
from bidplane.plane.feed import Item, Key
from bidplane.plane.plane import Plane
from bidplane.plane.registry import CRDS
from bidplane.plane.verbs.update import is_finished
from bidplane.wire import status
from bidplane.wire.crds import CLEANUP

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_LASTING = ("default", "kube-system", "kube-public")  # namespaces
_POLICIES = ("Background", "Foreground", "Orphan")


class DeleteOptions(msgspec.Struct, frozen=True, kw_only=True):
    grace_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: str = ""


def options(body: Object, query: dict[str, str]) -> DeleteOptions:
    """From a request's body and query; the query wins where both speak."""
    conditions = body.get("preconditions") or {}
    grace: Any = query.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
    propagation = query.get("propagationPolicy") or body.get("propagationPolicy") or ""
    if propagation and propagation not in _POLICIES:
        raise status.bad_request(
            f'invalid propagationPolicy "{propagation}": use one of {", ".join(_POLICIES)}'
        )
    if body.get("orphanDependents"):
        propagation = "Orphan"
    try:
        grace_seconds = None if grace is None else int(grace)
    except ValueError:
        raise status.bad_request(f"invalid gracePeriodSeconds {grace!r}") from None
    return DeleteOptions(
        grace_seconds=grace_seconds,
        uid=conditions.get("uid"),
        resource_version=conditions.get("resourceVersion"),
        propagation=propagation,
    )


async def delete(plane: Plane, call: Call, wanted: DeleteOptions) -> tuple[Item, bool]:
    """The object's last state, and whether it is gone."""
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    _preconditions(call, wanted, latest)
    if call.resource.storage == "namespaces" and call.name in _LASTING:
        raise status.forbidden(call.about, "this namespace may not be deleted")
    grace = _grace(call, wanted, latest.obj)
    meta = dict(latest.obj["metadata"])
    obj = {**latest.obj, "metadata": meta}
    _mark(plane, obj, meta, grace)
    _propagate(plane, call, wanted, meta)
    if call.resource.storage == "namespaces":
        obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    gone = is_finished(obj)
    if call.resource.storage == "pods" and call.user is not SYSTEM and not call.dry_run:
        await _let_go(plane, latest)
    if call.dry_run:
        return Item(latest.key, obj, latest.raw, latest.created, latest.revision), gone
    if gone:
        return await plane.store.remove(call.key, latest.obj), True
    if meta == latest.obj["metadata"]:
        await plane.store.settle(call.key)
        return latest, False  # already on its way
    return await plane.store.put(call.key, obj), False


async def _let_go(plane: Plane, pod: Item) -> None:
    """Whoever deletes a pod that we are evicting does not want it back."""
    kept = plane.store.latest(Key("podtemplates", pod.key.namespace, requeue.kept_name(pod.uid)))
    if kept is not None:
        await plane.store.remove(kept.key, kept.obj)


def _preconditions(call: Call, wanted: DeleteOptions, latest: Item) -> None:
    # Upstream names the kind here, not the resource.
    about = status.About(call.resource.kind, call.resource.group, call.name)
    if wanted.uid not in (None, "", latest.uid):
        why = (
            f"the UID in the precondition ({wanted.uid}) does not match the UID in record"
            f" ({latest.uid}). The object might have been deleted and then recreated"
        )
        raise status.conflict(about, why)
    if wanted.resource_version not in (None, "", str(latest.revision)):
        why = (
            f"the ResourceVersion in the precondition ({wanted.resource_version}) does not match"
            f" the ResourceVersion in record ({latest.revision}). The object might have been"
            " modified"
        )
        raise status.conflict(about, why)


def _grace(call: Call, wanted: DeleteOptions, obj: Object) -> int:
    """Seconds a pod has to stop; nothing else stops gracefully."""
    if call.resource.storage != "pods":
        return 0
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0  # nothing runs
    if wanted.grace_seconds is not None:
        return max(0, wanted.grace_seconds)
    return int(spec.get("terminationGracePeriodSeconds", 30))


def _mark(plane: Plane, obj: Object, meta: dict[str, Any], grace: int) -> None:
    before = meta.get("deletionGracePeriodSeconds")
    # A second delete may shorten the grace, never lengthen it.
    if "deletionTimestamp" in meta and (before is None or before <= grace):
        return
    if "deletionTimestamp" not in meta and "generation" in meta:
        meta["generation"] += 1
    meta["deletionTimestamp"] = rfc3339(plane.clock.now() + grace)
    meta["deletionGracePeriodSeconds"] = grace


def _propagate(plane: Plane, call: Call, wanted: DeleteOptions, meta: dict[str, Any]) -> None:
    """Orphaning and foreground deletion are finalizers that the garbage collector takes off."""
    finalizers = list(meta.get("finalizers") or ())
    choice = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(wanted.propagation)
    if wanted.propagation:
        finalizers = [name for name in finalizers if name not in (ORPHAN, FOREGROUND)]
    if call.resource.storage == CRDS and CLEANUP not in finalizers:
        finalizers.append(CLEANUP)  # its objects go first
    # Without dependents there is nothing to wait for.
    if choice and plane.dependents.get(meta.get("uid", "")):
        finalizers.append(choice)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
