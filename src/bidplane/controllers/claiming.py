"""
What the exchange is told of a lease: that its devices are claimed, from when on time is charged,
that what runs on them is up, and whether anything does; or that it cannot be used as it was won.
"""

from __future__ import annotations

from bidplane.api.kinds import GPU_LEASE
from bidplane.api.lease import CLAIMED, IN_USE, UP, VOID
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import rfc3339


async def claim(host: Client, lease: Object, *, reason: str, message: str, now: float) -> None:
    """Set the condition `Claimed`, unless it is there."""
    await _say(host, lease, CLAIMED, reason=reason, message=message, now=now)


async def tell_up(host: Client, lease: Object, *, now: float) -> None:
    """Set the condition `Up` of a lease whose start is measured, unless it is there."""
    if lease["spec"].get("measured"):
        await _say(host, lease, UP, reason="PodReady", message="its pod is ready", now=now)


async def tell_void(host: Client, lease: Object, *, message: str, now: float) -> None:
    """Set the condition `Void`, unless it is there: the exchange takes the sale back."""
    await _say(host, lease, VOID, reason="DeviceTaken", message=message, now=now)


async def tell_use(host: Client, lease: Object, *, used: bool, now: float) -> None:
    """Set the condition `InUse` to what is so since now."""
    words = ("PodBound", "a pod is on it") if used else ("NoPod", "no pod is on it")
    said = _condition(IN_USE, *words, now, status=str(used))
    conditions = (lease.get("status") or {}).get("conditions") or ()
    others = [known for known in conditions if known["type"] != IN_USE]
    await _write(host, lease, [*others, said])


async def _say(
    host: Client, lease: Object, condition: str, *, reason: str, message: str, now: float
) -> None:
    conditions = list((lease.get("status") or {}).get("conditions") or ())
    if any(known["type"] == condition for known in conditions):
        return
    await _write(host, lease, [*conditions, _condition(condition, reason, message, now)])


def _condition(
    type_: str, reason: str, message: str, now: float, *, status: str = "True"
) -> dict[str, str]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(now),
    }


async def _write(host: Client, lease: Object, conditions: list[Object]) -> None:
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
