"""PATCH: change part of an object. Server-side apply has a file of its own."""

from __future__ import annotations

from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.update import change
from bidplane.wire import patch as patches
from bidplane.wire import resources, status
from bidplane.wire.strategic import strategic

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def accepted(call: Call) -> tuple[str, ...]:
    return (JSON, MERGE) if call.resource.custom else (JSON, MERGE, STRATEGIC)


async def patch(plane: Plane, call: Call, sent: Any, media_type: str) -> Object:
    allowed = accepted(call)
    if media_type not in allowed:
        words = "the body of the request was in an unknown format - accepted media types include:"
        raise status.unsupported(f"{words} {', '.join((*allowed, APPLY))}")
    if media_type != JSON and not isinstance(sent, dict) and not hasattr(sent, "keys"):
        raise status.bad_request("error decoding patch: a merge patch is a JSON object")

    def patched(old: Object) -> Any:
        if media_type == JSON:
            return patches.json_patch(old, sent)
        # The revision in a patch is a condition; without one, the current object is meant.
        if media_type == MERGE:
            return patches.merge(old, sent)
        return strategic(old, sent, resources.shape(call.resource))

    return await change(plane, call, patched)
