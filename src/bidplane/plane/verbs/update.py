"""PUT, and the last step of PATCH: replace an object that has not changed since it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.admission import limits, quota
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Item
from bidplane.plane.verbs import prepare
from bidplane.wire import status
from bidplane.wire.patches.managers import Manager
from bidplane.wire.status import Cause

MANAGED = "managedFields"


async def update(plane: Plane, call: Call, sent: Any) -> Object:
    def replace(old: Object) -> Any:
        meta = sent.get("metadata") if isinstance(sent, Mapping) else None
        if not isinstance(meta, Mapping):
            meta = {}  # decoding reports the wrong type
        if not meta.get("resourceVersion") and call.resource.custom:
            message = "Invalid value: 0x0: must be specified for an update"
            raise status.invalid(call.about, [Cause(message, "metadata.resourceVersion")])
        uid, current_uid = meta.get("uid"), old["metadata"].get("uid")
        if uid not in (None, "", current_uid):
            # Of a PUT, the uid is a condition; of a patch, a change that is not allowed.
            reason = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta:"
                f" {current_uid}"
            )
            raise status.conflict(call.about, reason)
        return sent

    return await change(plane, call, replace)


async def change(
    plane: Plane,
    call: Call,
    make: Callable[[Object], Any],
    owners: Callable[[], list[Manager]] | None = None,
) -> Object:
    """
    Put `make(current)` in place of the current object.

    `owners`, called after `make`, returns the field managers; else the caller owns the fields it
    changes.
    """
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    current = call.to_requested_version(latest.obj)
    changed = make(current)
    new = prepare.decode_object(call, _without_unchanged(call, changed, current))
    _keep_managers(new, changed, current)
    _check_preconditions(call, new, latest)
    new = prepare.for_update(plane, call, new, latest.obj, owners() if owners else None)
    if call.subresource in ("", "resize"):
        quota.check(plane, call, new, latest.obj)
    if call.dry_run:
        return call.to_requested_version(new)
    if _is_unchanged(new, latest.obj):
        # Nothing to write; but the answer must not show an uncommitted state.
        await plane.store.settle(call.key)
        return call.to_requested_version(latest.obj)
    limits.check_growth(plane, call, new, latest)
    return call.to_requested_version((await write_or_remove(plane, latest, new)).obj)


def _without_unchanged(call: Call, changed: Any, current: Object) -> Any:
    """
    Return `changed` without the parts that are the very objects of `current`, so that they are not
    decoded again, which would be most of the work: managedFields, and the spec when only the status
    is written.
    """
    if not isinstance(changed, dict):
        return changed
    if (
        call.subresource == "status"
        and "spec" in changed
        and changed["spec"] is current.get("spec")
    ):
        changed = {key: value for key, value in changed.items() if key != "spec"}
    if _has_same_managers(changed, current):
        metadata = {key: value for key, value in changed["metadata"].items() if key != MANAGED}
        return {**changed, "metadata": metadata}
    return changed


def _keep_managers(new: dict[str, Any], changed: Any, current: Object) -> None:
    if _has_same_managers(changed, current):
        new["metadata"][MANAGED] = current["metadata"][MANAGED]


def _has_same_managers(changed: Any, current: Object) -> bool:
    metadata = changed.get("metadata") if isinstance(changed, dict) else None
    changed_managers = metadata.get(MANAGED) if isinstance(metadata, dict) else None
    return changed_managers is not None and changed_managers is current["metadata"].get(MANAGED)


async def write_or_remove(plane: Plane, latest: Item, new: dict[str, Any]) -> Item:
    """Write `new`, or remove the object if its deletion has nothing left to wait for."""
    if is_finished(new):
        return await plane.store.remove(latest.key, new)
    return await plane.store.put(latest.key, new)


def is_finished(obj: Object) -> bool:
    """Return whether an object being deleted has neither a finalizer nor grace left."""
    meta = obj["metadata"]
    return (
        "deletionTimestamp" in meta
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not (obj["kind"] == "Namespace" and (obj.get("spec") or {}).get("finalizers"))
    )


def _check_preconditions(call: Call, new: Object, latest: Item) -> None:
    """Raise 400 for another name, 409 for another revision than the stored object's."""
    meta = new["metadata"]
    if meta.get("name") not in (None, "", call.name):
        raise status.bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL"
            f" ({call.name})"
        )
    version = meta.get("resourceVersion")
    if version not in (None, "", str(latest.revision)):
        if not version.isdecimal():
            message = f'Invalid value: "{version}": must be an integer'
            raise status.invalid(call.about, [Cause(message, "metadata.resourceVersion")])
        raise status.conflict(call.about, status.MODIFIED)


def _is_unchanged(new: Object, old: Object) -> bool:
    ignored = "resourceVersion"
    return {**new, "metadata": {**new["metadata"], ignored: ""}} == {
        **old,
        "metadata": {**old["metadata"], ignored: ""},
    }
