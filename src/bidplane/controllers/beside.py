"""
Claims the companion devices that a lease needs beside its GPUs.

They are claimed on the host before the agent sees the lease; if one is no longer free, the lease
is void.
"""

from __future__ import annotations

import asyncio

import msgspec

from bidplane.api.bid import BidBeside
from bidplane.api.kinds import BID, DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.api.lease import VOID, Phase
from bidplane.controllers.claiming import mark_void
from bidplane.core.devices import companions
from bidplane.core.devices.claims import ClaimError
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.planes import PlaneCache


class DevicesTaken(msgspec.Struct, frozen=True):
    """The reason why the devices beside a lease's GPUs cannot be claimed."""

    message: str


class CompanionDeviceClaims:
    """Makes the host's claims for the devices that leases need beside their GPUs."""

    def __init__(self, host: PlaneCache, *, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        # Held from reading the free devices until one is allocated.
        self._allocating = asyncio.Lock()

    async def ensure_claim(self, lease: Object) -> Object | DevicesTaken | None:
        """
        Return the host's claim for the devices beside a lease's GPUs, made if they are free.

        None for a lease that needs no such devices. If they were taken, mark the lease void, so
        that the exchange reverses the sale.
        """
        needs = self._needs(lease)
        if not needs:
            return None
        for condition in lease["status"].get("conditions") or ():
            if condition["type"] == VOID:
                return DevicesTaken(condition.get("message", ""))  # a void lease stays void
        async with self._allocating:
            claim = await self._claim(lease, needs)
        if not isinstance(claim, DevicesTaken):
            return claim
        if lease["status"]["phase"] != Phase.PENDING:
            return None  # a running lease goes on with its GPUs
        now = self._clock.now()
        await mark_void(self._host.client, lease, message=claim.message, now=now)
        return claim

    def _needs(self, lease: Object) -> companions.Needs:
        """The companion devices that the lease needs."""
        if needs := lease["spec"].get("beside"):
            return tuple(msgspec.convert(needs, list[BidBeside]))
        # An earlier version did not store them: read them from the bid while that exists. No pod
        # binds to a lease whose bid is gone.
        reference = lease["spec"]["bid"]
        bid = self._host[BID].get(reference["namespace"], reference["name"])
        if bid is None or bid["metadata"]["uid"] != reference["uid"]:
            return ()
        return tuple(msgspec.convert(bid["spec"].get("beside") or [], list[BidBeside]))

    async def _claim(self, lease: Object, needs: companions.Needs) -> Object | DevicesTaken:
        """Return the lease's allocated claim, created on the host if its devices are free."""
        metadata, node = lease["metadata"], lease["spec"]["node"]
        client, name = self._host.client, companions.claim_name(metadata["name"])
        try:
            existing = await client.get(RESOURCE_CLAIM, name, metadata["namespace"])
            if (existing.get("status") or {}).get("allocation"):
                return existing
        except NotFound:
            pass
        # Read from the host, not the cache: other clients make claims there, too.
        claims = (await client.list(RESOURCE_CLAIM)).items
        classes = (await client.list(DEVICE_CLASS)).items
        devices = companions.Unpriced(self._host[RESOURCE_SLICE].items(), claims, classes)
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
                RESOURCE_CLAIM,
                {**claim, "status": status},
                metadata["namespace"],
                with_status=True,
            )
            if created.get("status") == status:
                return created
        except AlreadyExists:
            pass  # an earlier process created the claim and stopped before allocating it
        return await client.patch(
            RESOURCE_CLAIM, name, {"status": status}, metadata["namespace"], subresource="status"
        )
