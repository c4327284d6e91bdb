"""
From a notice to a pod's end. Pure.

A lease that must go says so on each of its pods: an annotation (which a downward API volume
shows as a file), the condition `DisruptionTarget`, an Event. A pod with a checkpoint command
is then left alone until its node has run it, or until only its shutdown fits into what is
left; every pod is deleted with the rest of the notice as its grace.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.api.lease import Phase
from bidplane.core.market.explain import IDLE

_WHY = {
    "Outbid": "another agent outbid this lease",
    "Moved": "this lease makes room for a larger block, and other GPUs are kept for its next bid",
    "Unfunded": "the wallet is empty",
    "BudgetSpent": "its budget is spent",
    "Suspended": "its agent is suspended",
    "Released": "the lease is given back",
}
# Of the notice, what is kept for the shutdown if the checkpoint takes all it can get.
_SHUTDOWN_PART = 3
# What a pod with a checkpoint command has when its own agent, or its owner, ends its lease.
RELEASE_SECONDS = 30.0


def is_given(lease: Object) -> bool:
    status = lease.get("status") or {}
    return status.get("phase") == Phase.DRAINING and bool(status.get("reclaimAt"))


def of_release(lease: Object, pod: Object, *, reason: str, asked: str, until: str) -> Object:
    """
    The lease, as if notice had been given when its end was asked for: to a pod that would save
    something. To any other, the lease as it is.
    """
    notes = pod["metadata"].get("annotations") or {}
    if is_given(lease) or not notes.get(labels.CHECKPOINT_COMMAND):
        return lease
    said = {"phase": Phase.DRAINING, "reason": reason, "noticeAt": asked, "reclaimAt": until}
    return {**lease, "status": {**lease["status"], **said}}


def annotation(lease: Object) -> str:
    """What the pod reads in `bidplane.dev/notice`."""
    status = lease["status"]
    said = {
        "reason": status.get("reason", ""),
        "reclaimAt": status["reclaimAt"],
        "compensation": status.get("compensation", ""),
        "lease": lease["metadata"]["name"],
    }
    return msgspec.json.encode(said).decode()


def words(lease: Object) -> str:
    status = lease["status"]
    until = status.get("reclaimAt")
    if not until:
        return "the lease was released"
    paid = status.get("compensation", "")
    # One that does nothing is outbid by who offers a little more than it.
    idle = status.get("reason") == "Outbid" and status.get("idleSince")
    return (
        f"{_WHY.get(status.get('reason', ''), 'the GPUs are reclaimed')}"
        + (f" ({IDLE})" if idle else "")
        + f": gone by {until}"
        + (f"; {paid} credits of compensation" if paid.strip("0.") else "")
        + "; the pod bids again"
    )


def condition(message: str, now: str) -> dict[str, Any]:
    """As upstream says it of a pod that is evicted for another's sake."""
    return {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": message,
        "lastTransitionTime": now,
    }


def checkpoint_wait(
    pod: Object, host_pod: Object | None, *, now: float, given: float, end: float
) -> float:
    """Seconds for which the pod may still save; 0 when it is to be ended."""
    notes = pod["metadata"].get("annotations") or {}
    if not notes.get(labels.CHECKPOINT_COMMAND) or host_pod is None:
        return 0.0
    if (host_pod.get("status") or {}).get("phase") != "Running":
        return 0.0
    if labels.CHECKPOINT in notes:  # taken, and known here: what it saved is not lost
        return 0.0
    asked: float = pod["spec"].get("terminationGracePeriodSeconds", 30)
    shutdown = min(asked, (end - given) / _SHUTDOWN_PART)
    return max(0.0, end - shutdown - now)
