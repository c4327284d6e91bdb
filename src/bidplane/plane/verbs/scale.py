"""GET, PUT and PATCH of NAME/scale: the replicas of any kind that has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.verbs import patch as patching
from bidplane.plane.verbs.prepare import bad_patch
from bidplane.plane.verbs.update import change
from bidplane.wire import status
from bidplane.wire.patches import jsonpatch as patches
from bidplane.wire.schema import decode, shapes
from bidplane.wire.schema.scalars import Mistyped
from bidplane.wire.selectors import selector_text
from bidplane.wire.status import Cause

_SPEC, _STATUS = ".spec.replicas", ".status.replicas"


def get(plane: Plane, call: Call) -> dict[str, Any]:
    item = plane.store.get(call.key)
    if item is None:
        raise status.not_found(call.about)
    return _scale(call, call.to_requested_version(item.obj))


async def put(plane: Plane, call: Call, sent: Any) -> dict[str, Any]:
    return await _write(plane, call, lambda _: sent)


async def patch(plane: Plane, call: Call, sent: Any, media_type: str) -> dict[str, Any]:
    if media_type not in (patching.JSON, patching.MERGE, patching.STRATEGIC):
        raise status.unsupported(f"a Scale cannot be patched with {media_type}")

    def apply_patch(old: Mapping[str, Any]) -> Any:
        # A Scale has no lists, so a strategic merge is a merge.
        merge = patches.json_patch if media_type == patching.JSON else patches.merge
        return merge(old, sent)

    call.patch_type = media_type
    return await _write(plane, call, apply_patch)


async def _write(plane: Plane, call: Call, make_scale: Any) -> dict[str, Any]:
    call.view = lambda obj: _scale(call, call.to_requested_version(obj))

    def scale_object(old: Object) -> dict[str, Any]:
        scale = _decode_scale(call, make_scale(_scale(call, old)))
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            about = status.About("scales", "autoscaling", call.name, "Scale")
            message = f"Invalid value: {replicas}: must be greater than or equal to 0"
            raise status.invalid(about, [Cause(message, "spec.replicas")])
        new: dict[str, Any] = patches.copy(old)
        _set_at(new, (call.resource.scale or {}).get("specReplicasPath", _SPEC), replicas)
        version = (scale.get("metadata") or {}).get("resourceVersion")
        if version:
            new["metadata"]["resourceVersion"] = version  # a condition, as on the object itself
        return new

    return _scale(call, await change(plane, call, scale_object))


def _decode_scale(call: Call, sent: Any) -> dict[str, Any]:
    shape = shapes.builtin("autoscaling/v1", "Scale")
    assert shape is not None
    if not isinstance(sent, Mapping) or sent.get("kind", "Scale") != "Scale":
        raise status.bad_request("the object provided is not a Scale")
    try:
        scale: dict[str, Any] = decode.clean(sent, shape, decode.DecodeReport())
    except Mistyped as error:
        message = f'Scale in version "v1" cannot be handled as a Scale: {error}'
        raise bad_patch(call, str(error), sent) or status.bad_request(message) from None
    return scale


def _scale(call: Call, obj: Object) -> dict[str, Any]:
    """Return the Scale of an object."""
    paths = call.resource.scale or {}
    meta = obj["metadata"]
    meta_fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    replicas = _value_at(obj, paths.get("specReplicasPath", _SPEC)) or 0
    scale_status: dict[str, Any] = {
        "replicas": _value_at(obj, paths.get("statusReplicasPath", _STATUS)) or 0
    }
    if call.resource.scale is None:
        scale_status["selector"] = selector_text((obj.get("spec") or {}).get("selector"))
    elif paths.get("labelSelectorPath"):
        scale_status["selector"] = _value_at(obj, paths["labelSelectorPath"]) or ""
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in meta_fields if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {key: value for key, value in scale_status.items() if value != ""},
    }


def _value_at(obj: Mapping[str, Any], path: str) -> Any:
    value: Any = obj
    for name in path.strip(".").split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _set_at(obj: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.strip(".").split(".")
    for name in way:
        obj = obj.setdefault(name, {})
    obj[last] = value
