"""POST: create an object, in a namespace that exists and is not being deleted."""

from __future__ import annotations

from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.admission import limits, quota
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Key
from bidplane.plane.verbs import prepare
from bidplane.wire import status
from bidplane.wire.patches.managers import Manager
from bidplane.wire.status import Cause

_TRIES = 8  # of a generated name


async def create(
    plane: Plane, call: Call, sent: Any, owners: list[Manager] | None = None
) -> Object:
    """Store a new object and return it; `owners` are its field managers if it was applied."""
    obj = prepare.decode_object(call, sent)
    generated = not obj["metadata"].get("name") and obj["metadata"].get("generateName")
    prepare.for_create(plane, call, obj, owners)
    _require_namespace(plane, call)
    for _ in range(_TRIES):
        if plane.store.latest(call.key) is None:
            break
        if not generated:
            raise status.already_exists(call.about)
        obj["metadata"]["name"] = ""
        prepare.for_create(plane, call, obj, owners)
    else:
        raise status.already_exists(call.about)
    limits.check(plane, call)
    quota.check(plane, call, obj)
    if call.dry_run:
        return call.to_requested_version(obj)
    item = await plane.store.put(call.key, obj)
    return call.to_requested_version(item.obj)


def _require_namespace(plane: Plane, call: Call) -> None:
    """Raise 404 or 403 unless the namespace exists and is not being deleted."""
    if not call.resource.namespaced:
        return
    namespace = plane.store.latest(Key("namespaces", "", call.namespace))
    if namespace is None:
        raise status.not_found(status.About("namespaces", "", call.namespace, "Namespace"))
    if "deletionTimestamp" in namespace.obj["metadata"]:
        reason = (
            f"unable to create new content in namespace {call.namespace} because it is being"
            " terminated"
        )
        cause = Cause(
            f"namespace {call.namespace} is being terminated",
            "metadata.namespace",
            "NamespaceTerminating",
        )
        raise status.forbidden(call.about, reason, [cause])
