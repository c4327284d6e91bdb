"""PATCH: change part of an object. Server-side apply is in `apply`."""

from __future__ import annotations

from typing import Any

from bidplane.kube.client import Object
from bidplane.plane.call import APPLY, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Call
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.update import change
from bidplane.wire import resources, status
from bidplane.wire.patches import jsonpatch as patches
from bidplane.wire.patches.strategic import strategic

JSON, MERGE, STRATEGIC = JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH


def accepted_media_types(call: Call) -> tuple[str, ...]:
    """Return the media types of patches for the kind; custom resources have no strategic merge."""
    return (JSON, MERGE) if call.resource.custom else (JSON, MERGE, STRATEGIC)


async def patch(plane: Plane, call: Call, sent: Any, media_type: str) -> Object:
    allowed = accepted_media_types(call)
    if media_type not in allowed:
        message = "the body of the request was in an unknown format - accepted media types include:"
        raise status.unsupported(f"{message} {', '.join((*allowed, APPLY))}")
    if media_type != JSON and not isinstance(sent, dict) and not hasattr(sent, "keys"):
        raise status.bad_request("error decoding patch: a merge patch is a JSON object")

    call.patch_type = media_type
    call.patch = sent if media_type == STRATEGIC else None

    def apply_patch(old: Object) -> Any:
        if media_type == JSON:
            return patches.json_patch(old, sent)
        # The revision in a patch is a condition; without one, the current object is meant.
        if media_type == MERGE:
            return patches.merge(old, sent)
        return strategic(old, sent, resources.shape(call.resource))

    return await change(plane, call, apply_patch)
