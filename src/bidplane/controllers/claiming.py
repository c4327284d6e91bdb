"""
What the exchange is told of a lease: that its devices are claimed, from when on time is charged,
and that what runs on them is up.
"""

from __future__ import annotations

from bidplane.api.kinds import GPU_LEASE
from bidplane.api.lease import CLAIMED, UP
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import rfc3339


async def claim(host: Client, lease: Object, *, reason: str, message: str, now: float) -> None:
    """Set the condition `Claimed`, unless it is there."""
    await _say(host, lease, CLAIMED, reason=reason, message=message, now=now)


async def tell_up(host: Client, lease: Object, *, now: float) -> None:
    """Set the condition `Up` of a lease whose start is measured, unless it is there."""
    if lease["spec"].get("measured"):
        await _say(host, lease, UP, reason="PodReady", message="its pod is ready", now=now)


async def _say(
    host: Client, lease: Object, condition: str, *, reason: str, message: str, now: float
) -> None:
    conditions = list((lease.get("status") or {}).get("conditions") or ())
    if any(known["type"] == condition for known in conditions):
        return
    metadata = lease["metadata"]
    said = {
        "type": condition,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(now),
    }
    await host.patch(
        GPU_LEASE,
        metadata["name"],
        {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": {"conditions": [*conditions, said]},
        },
        metadata["namespace"],
        subresource="status",
    )
