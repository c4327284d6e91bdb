"""
A pod's checkpoint command, run beside its container when notice is given.

How it went is written on the pod, once: whoever ends the pod waits for that. A command that
takes longer than the notice is ended with it.
"""

from __future__ import annotations

import shlex
from contextlib import suppress

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import POD
from bidplane.errors import ApiError
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, parse_rfc3339, rfc3339
from bidplane.node.process.unit import Unit

_SECONDS = 30.0  # for a notice that does not say when it ends


def is_due(pod: Object) -> bool:
    notes = pod["metadata"].get("annotations") or {}
    return bool(
        labels.NOTICE in notes
        and notes.get(labels.CHECKPOINT_COMMAND)
        and labels.CHECKPOINT not in notes
    )


async def take(client: Client, pod: Object, unit: Unit, *, clock: Clock) -> str:
    """Run it, write down how it went, and return that."""
    notes, metadata = pod["metadata"]["annotations"], pod["metadata"]
    try:
        command = shlex.split(notes[labels.CHECKPOINT_COMMAND])
        ran = await unit.beside(command, _left(notes[labels.NOTICE], clock.now()))
    except ValueError as error:
        said = f"not run: {error}"
    else:
        said = "took longer than the notice" if ran is None else f"exit {ran.code}"
    told = {labels.CHECKPOINT: f"{rfc3339(clock.now())} {said}"}
    with suppress(ApiError):  # gone, or unreachable: the notice ends by itself
        await client.patch(
            POD,
            metadata["name"],
            {"metadata": {"uid": metadata["uid"], "annotations": told}},
            metadata["namespace"],
            subresource="status",  # all of a pod that a node may write
        )
    return said


def _left(notice: str, now: float) -> float:
    try:
        end = parse_rfc3339(msgspec.json.decode(notice)["reclaimAt"])
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError):
        return _SECONDS
    return max(1.0, end - now)
