"""
What a lease has beside its GPUs, of devices that nobody sells: claimed on the host before the
lease is shown to its agent, or the lease is void.
"""

from __future__ import annotations

import asyncio

import msgspec

from bidplane.api.bid import BidBeside
from bidplane.api.kinds import BID, DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.api.lease import VOID, Phase
from bidplane.controllers.claiming import tell_void
from bidplane.core import beside
from bidplane.core.claims import ClaimError
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.planes import PlaneCache


class Missed(msgspec.Struct, frozen=True):
    message: str


class Beside:
    def __init__(self, host: PlaneCache, *, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        # Between looking what is free and taking it, nobody else here takes anything.
        self._taking = asyncio.Lock()

    async def hold(self, lease: Object) -> Object | Missed | None:
        """
        The host's claim for it, made if it can be; None for a lease that needs nothing beside.
        Of a win that missed it the exchange is told, which takes the sale back.
        """
        needs = self._needs(lease)
        if not needs:
            return None
        for said in lease["status"].get("conditions") or ():
            if said["type"] == VOID:
                return Missed(said.get("message", ""))  # it stays so, though one be free again
        async with self._taking:
            claim = await self._claim(lease, needs)
        if not isinstance(claim, Missed):
            return claim
        if lease["status"]["phase"] != Phase.PENDING:
            return None  # what runs goes on with its GPUs
        now = self._clock.now()
        await tell_void(self._host.client, lease, message=claim.message, now=now)
        return claim

    def _needs(self, lease: Object) -> beside.Needs:
        """As its bid says; a bid that is gone leaves a lease nobody will bind to."""
        reference = lease["spec"]["bid"]
        bid = self._host[BID].get(reference["namespace"], reference["name"])
        if bid is None or bid["metadata"]["uid"] != reference["uid"]:
            return ()
        return tuple(msgspec.convert(bid["spec"].get("beside") or [], list[BidBeside]))

    async def _claim(self, lease: Object, needs: beside.Needs) -> Object | Missed:
        metadata, node = lease["metadata"], lease["spec"]["node"]
        client, name = self._host.client, beside.claim_name(metadata["name"])
        try:
            found = await client.get(RESOURCE_CLAIM, name, metadata["namespace"])
            if (found.get("status") or {}).get("allocation"):
                return found
        except NotFound:
            pass
        # Asked of the host itself: others claim there, too.
        claims = (await client.list(RESOURCE_CLAIM)).items
        classes = (await client.list(DEVICE_CLASS)).items
        there = beside.Unpriced(self._host[RESOURCE_SLICE].items(), claims, classes)
        try:
            allocation = there.allocation(needs, node)
        except ClaimError as error:
            return Missed(str(error))
        if allocation is None:
            what = beside.in_words(needs)
            return Missed(f"{what} beside its GPUs is no longer free on node {node}")
        wanted = beside.host_claim(lease, needs)
        status = {"allocation": allocation}
        try:
            made = await client.create(
                RESOURCE_CLAIM,
                {**wanted, "status": status},
                metadata["namespace"],
                with_status=True,
            )
            if made.get("status") == status:
                return made
        except AlreadyExists:
            pass  # by who was killed before it was allocated
        return await client.patch(
            RESOURCE_CLAIM, name, {"status": status}, metadata["namespace"], subresource="status"
        )
