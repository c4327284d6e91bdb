"""Asking the exchange for a lease's devices: from then on, time is charged."""

from __future__ import annotations

from bidplane.api.kinds import GPU_LEASE
from bidplane.api.lease import CLAIMED
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import rfc3339


async def claim(host: Client, lease: Object, *, reason: str, message: str, now: float) -> None:
    """Set the condition `Claimed`, unless it is there."""
    conditions = list(lease["status"].get("conditions") or ())
    if any(condition["type"] == CLAIMED for condition in conditions):
        return
    metadata = lease["metadata"]
    claimed = {
        "type": CLAIMED,
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
            "status": {"conditions": [*conditions, claimed]},
        },
        metadata["namespace"],
        subresource="status",
    )
