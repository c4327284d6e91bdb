"""
Tells a pod why it waits: in its condition `PodScheduled`, in the annotation `bidplane.dev/pending`
for programs, and in an Event when the reason changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import POD
from bidplane.api.objects import Fields
from bidplane.api.reading import Bid
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.api.views import Pod
from bidplane.core.bidding import pending
from bidplane.core.scheduling import Explain, Operation
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder

_BRIEF_REASONS = ("Bidding", "Won")  # reasons to wait that mostly end within a round
_BRIEF_SECONDS = 10.0  # a burst of pods takes a few seconds; explaining each wait would take more


def without_brief_waits(plan: Sequence[Operation], now: float) -> tuple[list[Operation], bool]:
    """
    Drop explanations of waits that mostly end within a round; return the rest, and True if any
    was dropped.
    """
    operations = [operation for operation in plan if not _is_brief(operation, now)]
    return operations, len(operations) < len(plan)


def _is_brief(operation: Operation, now: float) -> bool:
    """Return True for the explanation of a wait that has just begun and will mostly end soon."""
    return (
        isinstance(operation, Explain)
        and operation.reason in _BRIEF_REASONS
        and operation.bid is not None
        and now - _created_at(operation.bid, now) < _BRIEF_SECONDS
        and Pod(operation.pod).condition("PodScheduled") is None
    )


class PodExplainer:
    """Writes to pods why they wait."""

    def __init__(self, recorder: Recorder, *, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock

    async def explain(self, client: KubeClient, explanation: Explain) -> None:
        """Write the explanation to its pod, if it tells more than what the pod has."""
        pod, reason, message = Pod(explanation.pod), explanation.reason, explanation.message
        current = pod.condition("PodScheduled")
        if current and (current.get("reason"), current.get("message")) == (reason, message):
            return
        now = self._clock.now()
        since = _created_at(explanation.bid or pod, now)
        details = pending.explanation(reason, message, explanation.bid, now=now, since=since)
        is_same_reason = current is not None and current.get("reason") == reason
        if is_same_reason and not pending.differs(details, _previous_explanation(pod)):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": (current or {}).get("lastTransitionTime") or rfc3339(now),
        }
        await self._write(client, pod, condition, details)
        # One Event per change of reason, not per change of price.
        if reason not in _BRIEF_REASONS and not is_same_reason:
            await self._recorder.record(client, pod, reason, message, type="Warning")

    async def _write(
        self, client: KubeClient, pod: Pod, condition: Mapping[str, str], details: Fields
    ) -> None:
        """
        Write the condition and the annotation in one write: whoever writes a pod's status may
        write its annotations. A wait of one round gets only the condition.
        """
        annotations = {labels.PENDING: msgspec.json.encode(details).decode()}
        other_conditions = [c for c in pod.conditions if c["type"] != "PodScheduled"]
        await client.patch(
            POD,
            pod.name,
            {
                "metadata": {
                    "resourceVersion": pod.resource_version,
                    **({"annotations": annotations} if condition["reason"] != "Bidding" else {}),
                },
                "status": {"conditions": [*other_conditions, condition]},
            },
            pod.namespace,
            subresource="status",
        )


def _created_at(obj: Bid | Pod, now: float) -> float:
    """Return the object's creation time; `now` if it has none."""
    created = obj.creation_timestamp
    return parse_rfc3339(created) if created else now


def _previous_explanation(pod: Pod) -> Fields | None:
    """Return the explanation in the pod's annotation; None without one that can be read."""
    text = pod.annotations.get(labels.PENDING)
    if text is None:
        return None
    try:
        details = msgspec.json.decode(text, type=dict[str, Any])
        pending.differs(details, details)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return None
    return details
