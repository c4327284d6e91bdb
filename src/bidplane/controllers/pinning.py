"""The claim on the host that pins what a pod has of a lease: the exchange has placed it."""

from __future__ import annotations

from typing import NamedTuple

from bidplane.api.kinds import RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.core import beside, binding, claiming, parts, translation
from bidplane.errors import AlreadyExists
from bidplane.kube.client import Object
from bidplane.machinery.planes import PlaneCache


class Pinned(NamedTuple):
    claim: Object  # for GPUs, allocated, as the host has it
    beside: str  # the name of the claim for what the pod has beside them; "" if it has nothing


async def pin(
    host: PlaneCache, plane: PlaneCache, lease: Object, pod: Object, *, now: float
) -> Pinned:
    """What a pod has. What was allocated so before stays since then."""
    metadata = pod["metadata"]
    own = others = ""
    if pod["spec"].get("resourceClaims"):
        claims = [
            await plane.client.get(
                RESOURCE_CLAIM, claiming.claim_name(pod, reference), metadata["namespace"]
            )
            for reference in pod["spec"]["resourceClaims"]
        ]
        driver = lease["spec"]["devices"][0]["driver"]
        if claiming.has_others(claims, driver):
            others = beside.claim_name(lease["metadata"]["name"])
        lease = translation.some_of(lease, claiming.devices_of(claims, driver))
        own = translation.host_name(metadata["namespace"], metadata["name"])
        if len(claims) == 1 and not claiming.is_all_its_own(pod):
            # Pods that share a claim share it there, too: no device is given out twice.
            own = f"{lease['metadata']['name']}-{claims[0]['metadata']['uid']}"
    slices = host[RESOURCE_SLICE].items()
    # A MIG instance is a device of its own there, which its node makes.
    lease = parts.on_host(lease, slices)
    asked = binding.asked_of(lease["spec"]["devices"], slices)
    claim, status = translation.host_claim(plane.name, lease, own, asked=asked)
    status["allocation"] = binding.stamped(status["allocation"], now=now)
    return Pinned(await _written(host, claim, status), others)


async def _written(host: PlaneCache, claim: Object, status: Object) -> Object:
    name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
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
