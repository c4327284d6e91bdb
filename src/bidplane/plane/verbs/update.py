"""PUT and what PATCH becomes: replace an object that has not changed since it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bidplane.kube.client import Object
from bidplane.plane import quota
from bidplane.plane.call import Call
from bidplane.plane.feed import Item
from bidplane.plane.plane import Plane
from bidplane.plane.verbs import prepare
from bidplane.wire import status
from bidplane.wire.managers import Manager
from bidplane.wire.status import Cause

MANAGED = "managedFields"


async def update(plane: Plane, call: Call, sent: Any) -> Object:
    def replaced(old: Object) -> Any:
        meta = (sent.get("metadata") or {}) if isinstance(sent, Mapping) else {}
        if not meta.get("resourceVersion") and call.resource.custom:
            words = "Invalid value: 0x0: must be specified for an update"
            raise status.invalid(call.about, [Cause(words, "metadata.resourceVersion")])
        uid, found = meta.get("uid"), old["metadata"].get("uid")
        if uid not in (None, "", found):
            # Of a PUT, the uid is a condition; of a patch, a change that is not allowed.
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
            raise status.conflict(call.about, why)
        return sent

    return await change(plane, call, replaced)


async def change(
    plane: Plane,
    call: Call,
    make: Callable[[Object], Any],
    owners: Callable[[], list[Manager]] | None = None,
) -> Object:
    """
    Put `make(current)` in place of the current object.

    `owners`, asked after `make`, says who owns its fields then; else the caller takes what it
    changes.
    """
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    shown = call.shown(latest.obj)
    made = make(shown)
    new = prepare.shaped(call, _without_unchanged(call, made, shown))
    _keep_managers(new, made, shown)
    _preconditions(call, new, latest)
    new = prepare.for_update(plane, call, new, latest.obj, owners() if owners else None)
    if call.subresource in ("", "resize"):
        quota.check(plane, call, new, latest.obj)
    if call.dry_run:
        return call.shown(new)
    if _same(new, latest.obj):
        # Nothing to write; but the answer must not run ahead of what is committed.
        await plane.store.settle(call.key)
        return call.shown(latest.obj)
    return call.shown((await keep(plane, latest, new)).obj)


def _without_unchanged(call: Call, made: Any, shown: Object) -> Any:
    """
    What nobody touched is not read through again, which would be most of the work: who owns which
    field, and of a write of the status the spec, which stays anyway. It is the very one there is.
    """
    if not isinstance(made, dict):
        return made
    if call.subresource == "status" and "spec" in made and made["spec"] is shown.get("spec"):
        made = {key: value for key, value in made.items() if key != "spec"}
    if _has_managers_of(made, shown):
        metadata = {key: value for key, value in made["metadata"].items() if key != MANAGED}
        return {**made, "metadata": metadata}
    return made


def _keep_managers(new: dict[str, Any], made: Any, shown: Object) -> None:
    if _has_managers_of(made, shown):
        new["metadata"][MANAGED] = shown["metadata"][MANAGED]


def _has_managers_of(made: Any, shown: Object) -> bool:
    metadata = made.get("metadata") if isinstance(made, dict) else None
    found = metadata.get(MANAGED) if isinstance(metadata, dict) else None
    return found is not None and found is shown["metadata"].get(MANAGED)


async def keep(plane: Plane, latest: Item, new: dict[str, Any]) -> Item:
    """Write `new`, or remove the object if nothing holds it back any more."""
    if is_finished(new):
        return await plane.store.remove(latest.key, new)
    return await plane.store.put(latest.key, new)


def is_finished(obj: Object) -> bool:
    """Whether an object being deleted has neither a finalizer nor grace left."""
    meta = obj["metadata"]
    return (
        "deletionTimestamp" in meta
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not (obj["kind"] == "Namespace" and (obj.get("spec") or {}).get("finalizers"))
    )


def _preconditions(call: Call, new: Object, latest: Item) -> None:
    meta = new["metadata"]
    if meta.get("name") not in (None, "", call.name):
        raise status.bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL"
            f" ({call.name})"
        )
    version = meta.get("resourceVersion")
    if version not in (None, "", str(latest.revision)):
        if not version.isdecimal():
            words = f'Invalid value: "{version}": must be an integer'
            raise status.invalid(call.about, [Cause(words, "metadata.resourceVersion")])
        raise status.conflict(call.about, status.MODIFIED)


def _same(new: Object, old: Object) -> bool:
    ignored = "resourceVersion"
    return {**new, "metadata": {**new["metadata"], ignored: ""}} == {
        **old,
        "metadata": {**old["metadata"], ignored: ""},
    }
