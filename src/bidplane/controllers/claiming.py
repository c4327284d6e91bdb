"""
Sets the conditions of a GPULease that the exchange reads.

`Claimed` (from then on time is charged), `Up`, `InUse`, `LinkDegraded`, and `Void` for a lease that
cannot be used as it was sold.
"""

from __future__ import annotations

from collections.abc import Sequence

from bidplane.api.kinds import GPU_LEASE
from bidplane.api.lease import CLAIMED, IN_USE, LINK_DEGRADED, UP, VOID
from bidplane.api.times import rfc3339
from bidplane.kube.client import KubeClient, Object


async def mark_claimed(
    host: KubeClient, lease: Object, *, reason: str, message: str, now: float
) -> None:
    """Set the condition `Claimed`, unless the lease has it."""
    await _add_condition(host, lease, CLAIMED, reason=reason, message=message, now=now)


async def mark_up(host: KubeClient, lease: Object, *, now: float) -> None:
    """Set the condition `Up` of a lease whose start is measured, unless the lease has it."""
    if lease["spec"].get("measured"):
        await _add_condition(
            host, lease, UP, reason="PodReady", message="its pod is ready", now=now
        )


async def mark_void(host: KubeClient, lease: Object, *, message: str, now: float) -> None:
    """Set the condition `Void`, unless the lease has it: the exchange then reverses the sale."""
    await _add_condition(host, lease, VOID, reason="DeviceTaken", message=message, now=now)


async def mark_links(
    host: KubeClient, lease: Object, problems: Sequence[str], *, now: float
) -> bool:
    """
    Set `LinkDegraded` from the problems of the lease's links; return True if that changed it.
    """
    conditions = (lease.get("status") or {}).get("conditions") or ()
    current = next(
        (condition for condition in conditions if condition["type"] == LINK_DEGRADED), None
    )
    status = "True" if problems else "False"
    message = "; ".join(problems) or "its links are restored"
    if (current or {"status": "False"})["status"] == status and (
        not problems or (current or {}).get("message") == message
    ):
        return False
    reason = LINK_DEGRADED if problems else "LinkRestored"
    condition = _condition(LINK_DEGRADED, reason, message, now, status=status)
    unchanged = [condition for condition in conditions if condition["type"] != LINK_DEGRADED]
    await _write(host, lease, [*unchanged, condition])
    return True


async def mark_in_use(host: KubeClient, lease: Object, *, used: bool, now: float) -> None:
    """Set the condition `InUse` to the present state."""
    details = ("PodBound", "a pod is on it") if used else ("NoPod", "no pod is on it")
    in_use = _condition(IN_USE, *details, now, status=str(used))
    conditions = (lease.get("status") or {}).get("conditions") or ()
    unchanged = [condition for condition in conditions if condition["type"] != IN_USE]
    await _write(host, lease, [*unchanged, in_use])


async def _add_condition(
    host: KubeClient, lease: Object, condition: str, *, reason: str, message: str, now: float
) -> None:
    """Add a condition of this type with status True, unless the lease has one."""
    conditions = list((lease.get("status") or {}).get("conditions") or ())
    if any(existing["type"] == condition for existing in conditions):
        return
    await _write(host, lease, [*conditions, _condition(condition, reason, message, now)])


def _condition(
    type_: str, reason: str, message: str, now: float, *, status: str = "True"
) -> dict[str, str]:
    """A status condition with these values, changed now."""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(now),
    }


async def _write(host: KubeClient, lease: Object, conditions: list[Object]) -> None:
    """Replace the lease's conditions, unless the lease changed meanwhile."""
    metadata = lease["metadata"]
    await host.patch(
        GPU_LEASE,
        metadata["name"],
        {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": {"conditions": conditions},
        },
        metadata["namespace"],
        subresource="status",
    )
