"""The claim on the host that pins what a pod has of a lease: the exchange has placed it."""

from __future__ import annotations

from bidplane.api.kinds import RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.core import binding, claiming, parts, translation
from bidplane.errors import AlreadyExists
from bidplane.kube.client import Object
from bidplane.machinery.planes import PlaneCache


async def pin(
    host: PlaneCache, plane: PlaneCache, lease: Object, pod: Object, *, now: float
) -> Object:
    """The claim, allocated, as the host has it. What was allocated so before stays since then."""
    metadata = pod["metadata"]
    own = ""
    if pod["spec"].get("resourceClaims"):
        claims = [
            await plane.client.get(
                RESOURCE_CLAIM, claiming.claim_name(pod, reference), metadata["namespace"]
            )
            for reference in pod["spec"]["resourceClaims"]
        ]
        lease = translation.some_of(lease, claiming.devices_of(claims))
        own = translation.host_name(metadata["namespace"], metadata["name"])
        if len(claims) == 1 and not claiming.is_all_its_own(pod):
            # Pods that share a claim share it there, too: no device is given out twice.
            own = f"{lease['metadata']['name']}-{claims[0]['metadata']['uid']}"
    slices = host[RESOURCE_SLICE].items()
    # A MIG instance is a device of its own there, which its node makes.
    lease = parts.on_host(lease, slices)
    asked = binding.asked_of(lease["spec"]["devices"], slices)
    claim, status = translation.host_claim(plane.name, lease, own, asked=asked)
    name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
    status["allocation"] = binding.stamped(status["allocation"], now=now)
    try:
        made = await host.client.create(
            RESOURCE_CLAIM, {**claim, "status": status}, namespace, with_status=True
        )
        if made.get("status") == status:
            return made
    except AlreadyExists:
        known = await host.client.get(RESOURCE_CLAIM, name, namespace)
        if _devices(known.get("status") or {}) == _devices(status):
            return known
    return await host.client.patch(
        RESOURCE_CLAIM, name, {"status": status}, namespace, subresource="status"
    )


def _devices(status: Object) -> object:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results")
