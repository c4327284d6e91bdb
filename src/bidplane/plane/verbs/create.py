"""POST: a new object, in a namespace that is there and stays."""

from __future__ import annotations

from typing import Any

from bidplane.kube.client import Object
from bidplane.plane import quota
from bidplane.plane.call import Call
from bidplane.plane.feed import Key
from bidplane.plane.plane import Plane
from bidplane.plane.verbs import prepare
from bidplane.wire import status
from bidplane.wire.managers import Manager
from bidplane.wire.status import Cause

_TRIES = 8  # of a generated name


async def create(
    plane: Plane, call: Call, sent: Any, owners: list[Manager] | None = None
) -> Object:
    obj = prepare.shaped(call, sent)
    generated = not obj["metadata"].get("name") and obj["metadata"].get("generateName")
    prepare.for_create(plane, call, obj, owners)
    _namespace(plane, call)
    for _ in range(_TRIES):
        if plane.store.latest(call.key) is None:
            break
        if not generated:
            raise status.already_exists(call.about)
        obj["metadata"]["name"] = ""
        prepare.for_create(plane, call, obj, owners)
    else:
        raise status.already_exists(call.about)
    quota.check(plane, call, obj)
    if call.dry_run:
        return call.shown(obj)
    item = await plane.store.put(call.key, obj)
    return call.shown(item.obj)


def _namespace(plane: Plane, call: Call) -> None:
    if not call.resource.namespaced:
        return
    found = plane.store.latest(Key("namespaces", "", call.namespace))
    if found is None:
        raise status.not_found(status.About("namespaces", "", call.namespace, "Namespace"))
    if "deletionTimestamp" in found.obj["metadata"]:
        why = (
            f"unable to create new content in namespace {call.namespace} because it is being"
            " terminated"
        )
        cause = Cause(
            f"namespace {call.namespace} is being terminated",
            "metadata.namespace",
            "NamespaceTerminating",
        )
        raise status.forbidden(call.about, why, [cause])
