"""
Sets the conditions of a GPULease that the exchange reads.

`Claimed` (from then on time is charged), `Up`, `InUse`, `LinkDegraded`, and `Void` for a lease that
cannot be used as it was sold.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bidplane.api.kinds import GPU_LEASE
from bidplane.api.lease import CLAIMED, IN_USE, LINK_DEGRADED, UP, VOID
from bidplane.api.reading import Condition, GPULease
from bidplane.api.times import rfc3339
from bidplane.kube.client import KubeClient


async def mark_claimed(
    host: KubeClient, lease: GPULease, *, reason: str, message: str, now: float
) -> None:
    """Set the condition `Claimed`, unless the lease has it."""
    await _add(host, lease, _condition(CLAIMED, reason, message, now))


async def mark_up(host: KubeClient, lease: GPULease, *, now: float) -> None:
    """Set the condition `Up` of a lease whose start is measured, unless the lease has it."""
    if lease.spec.measured:
        await _add(host, lease, _condition(UP, "PodReady", "its pod is ready", now))


async def mark_void(host: KubeClient, lease: GPULease, *, message: str, now: float) -> None:
    """Set the condition `Void`, unless the lease has it: the exchange then reverses the sale."""
    await _add(host, lease, _condition(VOID, "DeviceTaken", message, now))


async def mark_links(
    host: KubeClient, lease: GPULease, problems: Sequence[str], *, now: float
) -> bool:
    """
    Set `LinkDegraded` from the problems of the lease's links; return True if that changed it.
    """
    current = lease.condition(LINK_DEGRADED)
    was_degraded = current is not None and current.status == "True"
    message = "; ".join(problems) or "its links are restored"
    if was_degraded == bool(problems) and (
        not problems or (current is not None and current.message == message)
    ):
        return False
    reason = LINK_DEGRADED if problems else "LinkRestored"
    await _set(host, lease, _condition(LINK_DEGRADED, reason, message, now, is_true=bool(problems)))
    return True


async def mark_in_use(host: KubeClient, lease: GPULease, *, used: bool, now: float) -> None:
    """Set the condition `InUse` to the present state."""
    reason, message = ("PodBound", "a pod is on it") if used else ("NoPod", "no pod is on it")
    await _set(host, lease, _condition(IN_USE, reason, message, now, is_true=used))


def _condition(
    type_: str, reason: str, message: str, now: float, *, is_true: bool = True
) -> Condition:
    """A condition with these values, changed now."""
    return Condition(
        type=type_,
        status=str(is_true),
        reason=reason,
        message=message,
        last_transition_time=rfc3339(now),
    )


async def _add(host: KubeClient, lease: GPULease, condition: Condition) -> None:
    """Add a condition, unless the lease has one of this type."""
    if lease.condition(condition.type) is None:
        await _set(host, lease, condition)


async def _set(host: KubeClient, lease: GPULease, condition: Condition) -> None:
    """Write a condition in place of that of its type, unless the lease changed meanwhile."""
    other_conditions = [other for other in lease.conditions if other.type != condition.type]
    await host.patch(
        GPU_LEASE,
        lease.name,
        {
            "metadata": {"resourceVersion": lease.metadata.resource_version},
            "status": {"conditions": msgspec.to_builtins([*other_conditions, condition])},
        },
        lease.namespace,
        subresource="status",
    )
