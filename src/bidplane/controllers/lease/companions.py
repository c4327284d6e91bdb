"""
Claims the companion devices that a lease needs beside its GPUs.

They are claimed on the host before the agent sees the lease; if one is no longer free, the lease
is void.
"""

from __future__ import annotations

import asyncio

import msgspec

from bidplane.api.kinds import DEVICE_CLASS, RESOURCE_CLAIM
from bidplane.api.lease import VOID, Phase
from bidplane.api.reading import GPULease
from bidplane.api.views import ResourceClaim
from bidplane.controllers.conditions import mark_void
from bidplane.core.devices import companions
from bidplane.core.devices.claims import ClaimError
from bidplane.errors import AlreadyExists, NotFound
from bidplane.machinery.clock import Clock
from bidplane.machinery.planes import PlaneCache


class DevicesTaken(msgspec.Struct, frozen=True):
    """The reason why the companion devices of a lease cannot be claimed."""

    message: str


class CompanionDeviceClaims:
    """Makes the host's claims for the devices that leases need beside their GPUs."""

    def __init__(self, host: PlaneCache, *, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        # Held from reading the free devices until one is allocated.
        self._allocating = asyncio.Lock()

    async def ensure_claim(self, lease: GPULease) -> ResourceClaim | DevicesTaken | None:
        """
        Return the host's claim for a lease's companion devices, made if they are free.

        None for a lease that needs no such devices. If they were taken, mark the lease void, so
        that the exchange reverses the sale.
        """
        needs = self._needs(lease)
        if not needs:
            return None
        if (void := lease.condition(VOID)) is not None:
            return DevicesTaken(void.message)  # a void lease stays void
        async with self._allocating:
            claim = await self._claim(lease, needs)
        if not isinstance(claim, DevicesTaken):
            return claim
        if lease.phase != Phase.PENDING:
            return None  # a running lease goes on with its GPUs
        now = self._clock.now()
        await mark_void(self._host.client, lease, message=claim.message, now=now)
        return claim

    def _needs(self, lease: GPULease) -> companions.Needs:
        """Return the companion devices that the lease needs."""
        if lease.spec.beside:
            return lease.spec.beside
        # An earlier version did not store them: read them from the bid while that exists. No pod
        # binds to a lease whose bid is gone.
        reference = lease.spec.bid
        bid = self._host.bids.get(reference.namespace, reference.name)
        return bid.spec.beside if bid is not None and bid.uid == reference.uid else ()

    async def _claim(
        self, lease: GPULease, needs: companions.Needs
    ) -> ResourceClaim | DevicesTaken:
        """Return the lease's allocated claim, created on the host if its devices are free."""
        client, node = self._host.client, lease.spec.node
        name, namespace = companions.claim_name(lease.name), lease.namespace
        try:
            existing = ResourceClaim(await client.get(RESOURCE_CLAIM, name, namespace))
            if existing.allocation:
                return existing
        except NotFound:
            pass
        # Read from the host, not the cache: other clients make claims there, too.
        claims = (await client.list(RESOURCE_CLAIM)).items
        classes = (await client.list(DEVICE_CLASS)).items
        devices = companions.Unpriced(self._host.slices.items(), claims, classes)
        try:
            allocation = devices.allocation(needs, node)
        except ClaimError as error:
            return DevicesTaken(str(error))
        if allocation is None:
            description = companions.in_words(needs)
            return DevicesTaken(f"{description} beside its GPUs is no longer free on node {node}")
        claim = companions.host_claim(lease, needs)
        status = {"allocation": allocation}
        try:
            created = await client.create(
                RESOURCE_CLAIM, {**claim, "status": status}, namespace, with_status=True
            )
            if created.get("status") == status:
                return ResourceClaim(created)
        except AlreadyExists:
            pass  # an earlier process created the claim and stopped before allocating it
        return ResourceClaim(
            await client.patch(
                RESOURCE_CLAIM, name, {"status": status}, namespace, subresource="status"
            )
        )
