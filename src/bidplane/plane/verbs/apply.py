"""PATCH with `apply-patch+yaml`: server-side apply. What is not there is made."""

from __future__ import annotations

from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.create import create
from bidplane.plane.verbs.update import change
from bidplane.wire import managers, resources, status, typed
from bidplane.wire.fields import BadFields
from bidplane.wire.managers import Manager
from bidplane.wire.shapes import Shape


async def apply(plane: Plane, call: Call, config: Any, *, force: bool) -> tuple[Object, bool]:
    """The object, and whether it is new."""
    _check(call, config)
    shape = resources.shape(call.resource)
    try:
        typed.check(config, shape)
    except BadFields as error:
        meta = config["metadata"]
        api_version = config["apiVersion"]
        where = f"{meta.get('namespace', '')}/{meta['name']}"
        group = api_version if "/" in api_version else f"/{api_version}"
        raise status.refuse(
            500,
            "",
            f"failed to create typed patch object ({where}; {group},"
            f" Kind={config['kind']}): {error}",
        ) from None
    found: list[Manager] = []

    def applied(live: Object) -> dict[str, Any]:
        new, now = _applied(plane, call, config, live, shape, force=force)
        found[:] = now
        return new

    if plane.store.latest(call.key) is None:
        if call.subresource:
            raise status.not_found(call.about)
        if uid := config["metadata"].get("uid"):
            raise status.conflict(
                call.about,
                f"uid mismatch: the provided object specified uid {uid}, and no existing object"
                " was found",
            )
        new = applied({})
        new["metadata"].pop("resourceVersion", None)
        return await create(plane, call, new, found), True
    return await change(plane, call, applied, lambda: found), False


def _check(call: Call, config: Any) -> None:
    if not isinstance(config, dict):
        raise status.bad_request("error decoding patch: an applied configuration is an object")
    resource = call.resource
    api_version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    if (api_version, kind) != (resource.api_version, resource.kind):
        shown = api_version if "/" in str(api_version) else f"/{api_version}"
        raise status.bad_request(f"invalid object type: {shown}, Kind={kind}")
    meta = config.get("metadata")
    if not isinstance(meta, dict) or not meta.get("name"):
        raise status.bad_request(
            f"the name of the object ({call.name} based on URL) was undeterminable: name must be"
            " provided"
        )
    if meta["name"] != call.name:
        raise status.bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL"
            f" ({call.name})"
        )
    if meta.get("managedFields") is not None:
        raise status.bad_request("metadata.managedFields must be nil")


def _applied(
    plane: Plane, call: Call, config: Object, live: Object, shape: Shape, *, force: bool
) -> tuple[dict[str, Any], list[Manager]]:
    resource = call.resource
    found, tracked = managers.of({"metadata": {}}, live or None)
    if live and not tracked:
        found = [managers.before_first_apply(live, shape, resource.api_version)]
    who = Manager(
        name=call.manager,
        operation=managers.APPLY,
        api_version=resource.api_version,
        subresource=call.subresource,
    )
    new, now = managers.applied(
        found,
        who,
        config,
        live,
        shape,
        force=force,
        now=plane.now(),
        ignored=_ignored(call, config),
    )
    managers.note_last_applied(new, config, live, call.manager)
    return new, now


def _ignored(call: Call, config: Object) -> tuple[str, ...]:
    """What this path does not write, and so cannot own."""
    if call.subresource == "status":
        return tuple(key for key in config if key != "status")
    return ("status",) if call.resource.has_status else ()
