"""
The claim on the host for the devices of a lease that a pod uses, as the exchange placed them.
"""

from __future__ import annotations

from typing import NamedTuple

from bidplane.api.kinds import RESOURCE_CLAIM
from bidplane.api.objects import Fields
from bidplane.api.reading import GPULease
from bidplane.api.views import Pod, ResourceClaim
from bidplane.core.devices import bindingconditions, companions, migdevices
from bidplane.core.hosting import translation
from bidplane.core.scheduling import podclaims
from bidplane.errors import AlreadyExists
from bidplane.machinery.planes import PlaneCache


class HostClaims(NamedTuple):
    """The host's claims that a pod uses."""

    gpus: ResourceClaim  # allocated
    companions: str  # the name of the claim for companion devices; "" if the pod has none


async def write_claims(
    host: PlaneCache, plane: PlaneCache, lease: GPULease, pod: Pod, *, now: float
) -> HostClaims:
    """
    Write the host claim for the pod's devices and return it; an unchanged allocation keeps its
    time.
    """
    devices = lease.spec.devices
    claim_name = companion_claim = ""
    if pod.claim_references:
        claims = [
            ResourceClaim(
                await plane.client.get(
                    RESOURCE_CLAIM, podclaims.claim_name(pod, reference), pod.namespace
                )
            )
            for reference in pod.claim_references
        ]
        driver = devices[0].driver
        if podclaims.has_others(claims, driver):
            companion_claim = companions.claim_name(lease.name)
        claimed = podclaims.devices_of(claims, driver)
        devices = [device for device in devices if migdevices.shown_name(device) in claimed]
        claim_name = translation.host_name(pod.namespace, pod.name)
        if len(claims) == 1 and not podclaims.is_all_its_own(pod):
            # Pods that share a claim in the plane share one on the host.
            claim_name = f"{lease.name}-{claims[0].uid}"
    slices = host.slices.items()
    # On the host a MIG instance is a separate device, which its node creates.
    devices = migdevices.on_host(devices, slices)
    conditions = bindingconditions.required_by(devices, slices)
    claim, status = translation.host_claim(
        lease, devices, claim_name, binding_conditions=conditions
    )
    status["allocation"] = bindingconditions.stamped(status["allocation"], now=now)
    return HostClaims(await _write_claim(host, ResourceClaim(claim), status), companion_claim)


async def _write_claim(host: PlaneCache, claim: ResourceClaim, status: Fields) -> ResourceClaim:
    """Create the allocated claim, or update its allocation if that differs."""
    name, namespace = claim.name, claim.namespace
    allocated = ResourceClaim({**claim, "status": status})
    try:
        created = ResourceClaim(
            await host.client.create(RESOURCE_CLAIM, allocated.json, namespace, with_status=True)
        )
        if created.status == status:
            return created
    except AlreadyExists:
        existing = ResourceClaim(await host.client.get(RESOURCE_CLAIM, name, namespace))
        if existing.results == allocated.results:
            return existing
    return ResourceClaim(
        await host.client.patch(
            RESOURCE_CLAIM, name, {"status": status}, namespace, subresource="status"
        )
    )
