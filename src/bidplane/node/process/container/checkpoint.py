"""
A pod's checkpoint command, run in its container when notice is given.

Its outcome is annotated on the pod, once; the controller that ends the pod waits for it. A
command that takes longer than the notice is killed.
"""

from __future__ import annotations

import shlex
from contextlib import suppress

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import POD
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.errors import ApiError
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.node.process.container.container import Unit

_SECONDS = 30.0  # for a notice that does not say when it ends


def is_due(pod: Object) -> bool:
    """Return true if the pod has a notice and a checkpoint command that has not run."""
    notes = pod["metadata"].get("annotations") or {}
    return bool(
        labels.NOTICE in notes
        and notes.get(labels.CHECKPOINT_COMMAND)
        and labels.CHECKPOINT not in notes
    )


async def take(client: KubeClient, pod: Object, unit: Unit, *, clock: Clock) -> str:
    """Run the checkpoint command, annotate the pod with its outcome, and return it."""
    notes, metadata = pod["metadata"]["annotations"], pod["metadata"]
    try:
        command = shlex.split(notes[labels.CHECKPOINT_COMMAND])
        ran = await unit.run_command(command, _left(notes[labels.NOTICE], clock.now()))
    except ValueError as error:
        outcome = f"not run: {error}"
    else:
        outcome = "took longer than the notice" if ran is None else f"exit {ran.code}"
    annotations = {labels.CHECKPOINT: f"{rfc3339(clock.now())} {outcome}"}
    with suppress(ApiError):  # gone, or unreachable: the notice ends by itself
        await client.patch(
            POD,
            metadata["name"],
            {"metadata": {"uid": metadata["uid"], "annotations": annotations}},
            metadata["namespace"],
            subresource="status",  # all of a pod that a node may write
        )
    return outcome


def _left(notice: str, now: float) -> float:
    try:
        end = parse_rfc3339(msgspec.json.decode(notice)["reclaimAt"])
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError):
        return _SECONDS
    return max(1.0, end - now)
