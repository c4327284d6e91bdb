"""
The time from a lease's notice to its pods' end. Pure.

A lease under notice says so on each of its pods: in an annotation (which a downward API volume
shows as a file), in the condition `DisruptionTarget`, in an Event. A pod with a checkpoint command
is then left alone until its node has run the command, or until only its shutdown fits into the
remaining time. Every pod is deleted with the rest of the notice as its grace period.
"""

from __future__ import annotations

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.api.lease import Phase
from bidplane.api.objects import annotations_of, phase_of
from bidplane.api.reading import GPULease
from bidplane.api.times import parse_rfc3339, rfc3339
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


class ReclaimNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The announced end of a lease."""

    reason: str
    reclaim_at: str  # RFC 3339: when the pod must have ended
    compensation: str = ""  # credits
    lease: str
    given_at: str = ""  # RFC 3339: when the notice began; "" if that is not known
    is_idle: bool = False  # the lease was idle, so it lost to a bid slightly above its own


def notice_of(lease: GPULease) -> ReclaimNotice | None:
    """Return the notice that a lease is under; None without one."""
    status = lease.status
    if status is None or status.phase != Phase.DRAINING or not status.reclaim_at:
        return None
    return ReclaimNotice(
        reason=status.reason,
        reclaim_at=status.reclaim_at,
        compensation=status.compensation,
        lease=lease.name,
        given_at=status.notice_at,
        is_idle=bool(status.idle_since),
    )


def notice_of_release(
    lease: GPULease, pod: Object, *, reason: str, requested_at: float
) -> ReclaimNotice | None:
    """
    Return the notice of a lease that its agent, or a node's owner, ends: the lease's own, or one
    since the request for a pod with a checkpoint command; None for any other pod.
    """
    if (notice := notice_of(lease)) is not None:
        return notice
    if not annotations_of(pod).get(labels.CHECKPOINT_COMMAND):
        return None
    return ReclaimNotice(
        reason=reason,
        reclaim_at=rfc3339(requested_at + RELEASE_SECONDS),
        compensation=lease.status.compensation if lease.status is not None else "",
        lease=lease.name,
        given_at=rfc3339(requested_at),
    )


def annotation(notice: ReclaimNotice) -> str:
    """Return the text of a pod's annotation `bidplane.dev/notice`."""
    fields = {
        "reason": notice.reason,
        "reclaimAt": notice.reclaim_at,
        "compensation": notice.compensation,
        "lease": notice.lease,
    }
    return msgspec.json.encode(fields).decode()


def explanation(notice: ReclaimNotice | None) -> str:
    """Return a sentence that explains to a pod's owner why the pod ends."""
    if notice is None:
        return "the lease was released"
    paid = notice.compensation
    # An idle lease loses to a bid only slightly above its own.
    idle = notice.reason == "Outbid" and notice.is_idle
    return (
        f"{_CAUSES.get(notice.reason, 'the GPUs are reclaimed')}"
        + (f" ({IDLE})" if idle else "")
        + f": the pod must end by {notice.reclaim_at}"
        + (f"; {paid} credits of compensation" if paid.strip("0.") else "")
        + "; the pod bids again"
    )


def condition(message: str, now: str) -> dict[str, str]:
    """Return the condition `DisruptionTarget`, as upstream sets it on a preempted pod."""
    return {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": message,
        "lastTransitionTime": now,
    }


def checkpoint_wait(
    notice: ReclaimNotice, pod: Object, host_pod: Object | None, *, now: float
) -> float:
    """Return the seconds for which the pod may still save; 0 when it is to be ended."""
    annotations = annotations_of(pod)
    if not annotations.get(labels.CHECKPOINT_COMMAND) or host_pod is None:
        return 0.0
    if phase_of(host_pod) != "Running":
        return 0.0
    if labels.CHECKPOINT in annotations:  # the checkpoint is done and recorded
        return 0.0
    grace: float = pod["spec"].get("terminationGracePeriodSeconds", 30)
    end = parse_rfc3339(notice.reclaim_at)
    given_at = parse_rfc3339(notice.given_at or notice.reclaim_at)
    shutdown = min(grace, (end - given_at) / _SHUTDOWN_PART)
    return max(0.0, end - shutdown - now)
