"""PUT and PATCH of pods/NAME/resize and pods/NAME/ephemeralcontainers: one part of a pod each."""

from __future__ import annotations

from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.call import Call
from bidplane.wire import status
from bidplane.wire.kinds.pods import quality_of_service
from bidplane.wire.status import Cause


def merge_part(call: Call, new: dict[str, Any], old: Object) -> dict[str, Any]:
    """
    Return `old` with the part that this path writes taken from `new`; raise 422 for other changes.
    """
    spec = dict(old["spec"])
    if call.subresource == "resize":
        for field in ("containers", "initContainers"):
            if field in spec:
                spec[field] = _resized_containers(
                    call, new["spec"].get(field) or [], spec[field], field
                )
        if quality_of_service(spec) != quality_of_service(old["spec"]):
            message = (
                f'Invalid value: "{quality_of_service(spec)}": Pod QOS Class may not change as a'
                " result of resizing"
            )
            raise status.invalid(call.about, [Cause(message, "spec")])
    else:
        spec["ephemeralContainers"] = _ephemeral_containers(call, new["spec"], old["spec"])
        if not spec["ephemeralContainers"]:
            del spec["ephemeralContainers"]
    return {**old, "metadata": new["metadata"], "spec": spec}


def _resized_containers(call: Call, new: list[Any], old: list[Any], field: str) -> list[Any]:
    requested = {container.get("name"): container for container in new}
    if len(new) != len(old) or any(container["name"] not in requested for container in old):
        message = "Forbidden: containers may not be added, removed or renamed by a resize"
        raise status.invalid(call.about, [Cause(message, f"spec.{field}", "FieldValueForbidden")])
    resized = []
    for container in old:
        new_container = requested[container["name"]]
        unchanged = {key: value for key, value in container.items() if key != "resources"}
        resized.append({**unchanged, "resources": new_container.get("resources") or {}})
    return resized


def _ephemeral_containers(call: Call, new: Object, old: Object) -> list[Any]:
    requested = list(new.get("ephemeralContainers") or ())
    by_name = {container.get("name"): container for container in requested}
    for container in old.get("ephemeralContainers") or ():
        name = container["name"]
        if name not in by_name:
            message = f'Forbidden: existing ephemeral containers "{name}" may not be removed\n'
        elif by_name[name] != container:
            message = f'Forbidden: existing ephemeral containers "{name}" may not be changed\n'
        else:
            continue
        path = "spec.ephemeralContainers"
        raise status.invalid(call.about, [Cause(message, path, "FieldValueForbidden")])
    return requested
