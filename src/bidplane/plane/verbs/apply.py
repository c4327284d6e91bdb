"""PATCH with `apply-patch+yaml`: server-side apply. A missing object is created."""

from __future__ import annotations

from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.call import APPLY, Call
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.create import create
from bidplane.plane.verbs.update import change
from bidplane.wire import resources, status
from bidplane.wire.patches import managers
from bidplane.wire.patches.fields import BadFields
from bidplane.wire.patches.managers import Manager
from bidplane.wire.schema import typed
from bidplane.wire.schema.shapes import SchemaNode


async def apply(plane: Plane, call: Call, config: Any, *, force: bool) -> tuple[Object, bool]:
    """Return the object after the apply, and whether it is new."""
    _check_config(call, config)
    call.patch_type, call.patch = APPLY, config
    shape = resources.shape(call.resource)
    try:
        typed.check(config, shape)
    except BadFields as error:
        meta = config["metadata"]
        api_version = config["apiVersion"]
        object_name = f"{meta.get('namespace', '')}/{meta['name']}"
        group = api_version if "/" in api_version else f"/{api_version}"
        raise status.refuse(
            500,
            "",
            f"failed to create typed patch object ({object_name}; {group},"
            f" Kind={config['kind']}): {error}",
        ) from None
    field_managers: list[Manager] = []

    def make(live: Object) -> dict[str, Any]:
        new, new_managers = _merge_config(plane, call, config, live, shape, force=force)
        field_managers[:] = new_managers
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
        new = make({})
        new["metadata"].pop("resourceVersion", None)
        return await create(plane, call, new, field_managers), True
    return await change(plane, call, make, lambda: field_managers), False


def _check_config(call: Call, config: Any) -> None:
    """
    Raise 400 for a configuration of another kind or name than the request, or with managedFields.
    """
    if not isinstance(config, dict):
        raise status.bad_request("error decoding patch: an applied configuration is an object")
    resource = call.resource
    api_version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    if (api_version, kind) != (resource.api_version, resource.kind):
        group_version = api_version if "/" in str(api_version) else f"/{api_version}"
        raise status.bad_request(f"invalid object type: {group_version}, Kind={kind}")
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


def _merge_config(
    plane: Plane, call: Call, config: Object, live: Object, shape: SchemaNode, *, force: bool
) -> tuple[dict[str, Any], list[Manager]]:
    """Return the live object merged with `config`, and its field managers after that."""
    resource = call.resource
    field_managers, tracked = managers.of({"metadata": {}}, live or None)
    if live and not tracked:
        field_managers = [managers.before_first_apply(live, shape, resource.api_version)]
    applier = Manager(
        name=call.manager,
        operation=managers.APPLY,
        api_version=resource.api_version,
        subresource=call.subresource,
    )
    new, new_managers = managers.applied(
        field_managers,
        applier,
        config,
        live,
        shape,
        force=force,
        now=plane.now(),
        ignored=_ignored_fields(call, config),
    )
    managers.note_last_applied(new, config, live, call.manager)
    return new, new_managers


def _ignored_fields(call: Call, config: Object) -> tuple[str, ...]:
    """Return the fields that this path does not write, and so cannot own."""
    if call.subresource == "status":
        return tuple(key for key in config if key != "status")
    return ("status",) if call.resource.has_status else ()
