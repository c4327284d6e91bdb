"""
The claim on the host for the devices of a lease that a pod uses, as the exchange placed them.
"""

from __future__ import annotations

from typing import NamedTuple

from bidplane.api.kinds import RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.core.devices import bindingconditions, migdevices
from bidplane.core.devices import companions as beside
from bidplane.core.hosting import translation
from bidplane.core.scheduling import podclaims
from bidplane.errors import AlreadyExists
from bidplane.kube.client import Object
from bidplane.machinery.planes import PlaneCache


class PinnedClaims(NamedTuple):
    """The host's claims that a pod uses."""

    claim: Object  # the host's allocated claim for GPUs
    beside: str  # the name of the claim for companion devices; "" if the pod has none


async def pin(
    host: PlaneCache, plane: PlaneCache, lease: Object, pod: Object, *, now: float
) -> PinnedClaims:
    """
    Write the host claim for the pod's devices and return it; an unchanged allocation keeps its
    time.
    """
    metadata = pod["metadata"]
    claim_name = companion_claim = ""
    if pod["spec"].get("resourceClaims"):
        claims = [
            await plane.client.get(
                RESOURCE_CLAIM, podclaims.claim_name(pod, reference), metadata["namespace"]
            )
            for reference in pod["spec"]["resourceClaims"]
        ]
        driver = lease["spec"]["devices"][0]["driver"]
        if podclaims.has_others(claims, driver):
            companion_claim = beside.claim_name(lease["metadata"]["name"])
        lease = translation.some_of(lease, podclaims.devices_of(claims, driver))
        claim_name = translation.host_name(metadata["namespace"], metadata["name"])
        if len(claims) == 1 and not podclaims.is_all_its_own(pod):
            # Pods that share a claim in the plane share one on the host.
            claim_name = f"{lease['metadata']['name']}-{claims[0]['metadata']['uid']}"
    slices = host[RESOURCE_SLICE].items()
    # On the host a MIG instance is a separate device, which its node creates.
    lease = migdevices.on_host(lease, slices)
    conditions = bindingconditions.asked_of(lease["spec"]["devices"], slices)
    claim, status = translation.host_claim(plane.name, lease, claim_name, asked=conditions)
    status["allocation"] = bindingconditions.stamped(status["allocation"], now=now)
    return PinnedClaims(await _write_claim(host, claim, status), companion_claim)


async def _write_claim(host: PlaneCache, claim: Object, status: Object) -> Object:
    """Create the allocated claim, or update its allocation if that differs."""
    name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
    try:
        created = await host.client.create(
            RESOURCE_CLAIM, {**claim, "status": status}, namespace, with_status=True
        )
        if created.get("status") == status:
            return created
    except AlreadyExists:
        existing = await host.client.get(RESOURCE_CLAIM, name, namespace)
        if _devices(existing.get("status") or {}) == _devices(status):
            return existing
    return await host.client.patch(
        RESOURCE_CLAIM, name, {"status": status}, namespace, subresource="status"
    )


def _devices(status: Object) -> object:
    """The allocated devices in a claim's status."""
    return ((status.get("allocation") or {}).get("devices") or {}).get("results")
