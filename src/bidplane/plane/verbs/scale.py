"""GET, PUT and PATCH of NAME/scale: the replicas of anything that has some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.verbs import patch as patching
from bidplane.plane.verbs.update import change
from bidplane.wire import decode, shapes, status
from bidplane.wire import patch as patches
from bidplane.wire.selectors import selector_text
from bidplane.wire.status import Cause

_SPEC, _STATUS = ".spec.replicas", ".status.replicas"


def get(plane: Plane, call: Call) -> dict[str, Any]:
    item = plane.store.get(call.key)
    if item is None:
        raise status.not_found(call.about)
    return _scale(call, call.shown(item.obj))


async def put(plane: Plane, call: Call, sent: Any) -> dict[str, Any]:
    return await _write(plane, call, lambda _: sent)


async def patch(plane: Plane, call: Call, sent: Any, media_type: str) -> dict[str, Any]:
    if media_type not in (patching.JSON, patching.MERGE, patching.STRATEGIC):
        raise status.unsupported(f"a Scale cannot be patched with {media_type}")

    def patched(old: Mapping[str, Any]) -> Any:
        # A Scale has no lists, so a strategic merge is a merge.
        applied = patches.json_patch if media_type == patching.JSON else patches.merge
        return applied(old, sent)

    return await _write(plane, call, patched)


async def _write(plane: Plane, call: Call, make: Any) -> dict[str, Any]:
    def scaled(old: Object) -> dict[str, Any]:
        wanted = _decoded(call, make(_scale(call, old)))
        replicas = (wanted.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            about = status.About("scales", "autoscaling", call.name, "Scale")
            words = f"Invalid value: {replicas}: must be greater than or equal to 0"
            raise status.invalid(about, [Cause(words, "spec.replicas")])
        new: dict[str, Any] = patches.copy(old)
        _set(new, (call.resource.scale or {}).get("specReplicasPath", _SPEC), replicas)
        version = (wanted.get("metadata") or {}).get("resourceVersion")
        if version:
            new["metadata"]["resourceVersion"] = version  # a condition, as on the object itself
        return new

    return _scale(call, await change(plane, call, scaled))


def _decoded(call: Call, sent: Any) -> dict[str, Any]:
    shape = shapes.builtin("autoscaling/v1", "Scale")
    assert shape is not None
    if not isinstance(sent, Mapping) or sent.get("kind", "Scale") != "Scale":
        raise status.bad_request("the object provided is not a Scale")
    report = decode.Report()
    clean: dict[str, Any] = decode.clean(sent, shape, report)
    if report.wrong:
        raise status.bad_request(f"Scale cannot be handled: json: {report.wrong[0]}")
    return clean


def _scale(call: Call, obj: Object) -> dict[str, Any]:
    paths = call.resource.scale or {}
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    replicas = _get(obj, paths.get("specReplicasPath", _SPEC)) or 0
    told: dict[str, Any] = {"replicas": _get(obj, paths.get("statusReplicasPath", _STATUS)) or 0}
    if call.resource.scale is None:
        told["selector"] = selector_text((obj.get("spec") or {}).get("selector"))
    elif paths.get("labelSelectorPath"):
        told["selector"] = _get(obj, paths["labelSelectorPath"]) or ""
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {key: value for key, value in told.items() if value != ""},
    }


def _get(obj: Mapping[str, Any], path: str) -> Any:
    found: Any = obj
    for name in path.strip(".").split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _set(obj: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.strip(".").split(".")
    for name in way:
        obj = obj.setdefault(name, {})
    obj[last] = value
