"""
The time from a lease's notice to its pods' end. Pure.

A lease under notice says so on each of its pods: in an annotation (which a downward API volume
shows as a file), in the condition `DisruptionTarget`, in an Event. A pod with a checkpoint command
is then left alone until its node has run the command, or until only its shutdown fits into the
remaining time. Every pod is deleted with the rest of the notice as its grace period.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.api.lease import Phase
from bidplane.core.market.pricing.explain import IDLE

_CAUSES = {
    "Outbid": "another agent outbid this lease",
    "Moved": "this lease makes room for a larger block, and other GPUs are kept for its next bid",
    "Unfunded": "the wallet is empty",
    "BudgetSpent": "its budget is spent",
    "Suspended": "its agent is suspended",
    "Released": "the lease is given back",
}
# The part of the notice (a third) reserved for the shutdown, however long a checkpoint takes.
_SHUTDOWN_PART = 3
# The notice of a pod with a checkpoint command when its own agent, or the owner, ends its lease.
RELEASE_SECONDS = 30.0


def is_given(lease: Object) -> bool:
    """Return whether a lease is under notice."""
    status = lease.get("status") or {}
    return status.get("phase") == Phase.DRAINING and bool(status.get("reclaimAt"))


def of_release(lease: Object, pod: Object, *, reason: str, asked: str, until: str) -> Object:
    """
    Return the lease as if under notice since `asked`, for a pod with a checkpoint command.

    For any other pod, return the lease as it is.
    """
    notes = pod["metadata"].get("annotations") or {}
    if is_given(lease) or not notes.get(labels.CHECKPOINT_COMMAND):
        return lease
    notice = {"phase": Phase.DRAINING, "reason": reason, "noticeAt": asked, "reclaimAt": until}
    return {**lease, "status": {**lease["status"], **notice}}


def annotation(lease: Object) -> str:
    """Return the text of a pod's annotation `bidplane.dev/notice`."""
    status = lease["status"]
    notice = {
        "reason": status.get("reason", ""),
        "reclaimAt": status["reclaimAt"],
        "compensation": status.get("compensation", ""),
        "lease": lease["metadata"]["name"],
    }
    return msgspec.json.encode(notice).decode()


def words(lease: Object) -> str:
    """Return a sentence that explains to a pod's owner why the pod ends."""
    status = lease["status"]
    until = status.get("reclaimAt")
    if not until:
        return "the lease was released"
    paid = status.get("compensation", "")
    # An idle lease loses to a bid only slightly above its own.
    idle = status.get("reason") == "Outbid" and status.get("idleSince")
    return (
        f"{_CAUSES.get(status.get('reason', ''), 'the GPUs are reclaimed')}"
        + (f" ({IDLE})" if idle else "")
        + f": the pod must end by {until}"
        + (f"; {paid} credits of compensation" if paid.strip("0.") else "")
        + "; the pod bids again"
    )


def condition(message: str, now: str) -> dict[str, Any]:
    """Return the condition `DisruptionTarget`, as upstream sets it on a preempted pod."""
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
    """Return the seconds for which the pod may still save; 0 when it is to be ended."""
    notes = pod["metadata"].get("annotations") or {}
    if not notes.get(labels.CHECKPOINT_COMMAND) or host_pod is None:
        return 0.0
    if (host_pod.get("status") or {}).get("phase") != "Running":
        return 0.0
    if labels.CHECKPOINT in notes:  # the checkpoint is done and recorded
        return 0.0
    grace: float = pod["spec"].get("terminationGracePeriodSeconds", 30)
    shutdown = min(grace, (end - given) / _SHUTDOWN_PART)
    return max(0.0, end - shutdown - now)
