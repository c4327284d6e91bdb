"""
The controllers on real embedded planes, in virtual time.

There is no exchange and no node: a test says itself what those would write, and so
decides when, and what is never written.
"""

import asyncio
import contextlib
import random

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, NODE, POD
from bidplane.api.lease import CLAIMED, FINALIZER
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.activation.warmpath import ActivatorAddress
from bidplane.core.bidding.admission import admit
from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.errors import AlreadyExists, NotFound
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.sim.loop import VirtualClock, run
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.server import prepare_host

AGENT_NAME = "trainer"
SPACE = f"agent-{AGENT_NAME}"


class Site:
    def __init__(self, folder):
        self.clock = VirtualClock()
        self._folder = folder
        self._dice = random.Random(1)

    async def start(self, *, admit=admit):
        self.planes = Planes(
            self._folder,
            clock=self.clock,
            tokens=Tokens(b"t" * 32),
            crds=crds_for,
            ca="the certificate",
            admit=admit,
            durable=False,
            inline=True,
            dice=self._dice,
        )
        await prepare_host(self.planes, None)
        self.host = self.planes.client(HOST_PLANE)
        with contextlib.suppress(AlreadyExists):
            await self.host.create(NODE, {"metadata": {"name": "h100-a"}, "spec": {}})
        self.plane = self.planes.client(AGENT_NAME)
        driver = EmbeddedDriver(self.planes, "https://test")
        self.controllers = Controllers(
            self.host, driver, clock=self.clock, activator=ActivatorAddress("192.0.2.9", 6445)
        )
        self._task = asyncio.create_task(self.controllers.run())
        await self.settle()

    async def settle(self, seconds=1.0):
        """Let everything happen that is going to; claims are answered as the exchange does."""
        await asyncio.sleep(seconds)
        if await self._answer_claims():
            await asyncio.sleep(seconds)
        assert not self._task.done(), self._task

    async def _answer_claims(self):
        answered = False
        for lease in await self.all(self.host, GPU_LEASE):
            status = lease.get("status") or {}
            claimed = any(c["type"] == CLAIMED for c in status.get("conditions") or ())
            if claimed and status["phase"] == "Pending":
                await self.lease_status("Active", name=lease["metadata"]["name"])
                answered = True
        return answered

    async def pause(self):
        """The controllers stop; the planes stay: what happens now is found at the next start."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def resume(self):
        driver = EmbeddedDriver(self.planes, "https://test")
        self.controllers = Controllers(
            self.host, driver, clock=self.clock, activator=ActivatorAddress("192.0.2.9", 6445)
        )
        self._task = asyncio.create_task(self.controllers.run())
        await self.settle()

    async def close(self):
        await self.pause()
        await self.planes.close()

    # The user.

    async def agent(self, name=AGENT_NAME):
        spec = {"owner": "ann", "maxPrice": "1.00"}
        await self.host.create(AGENT, {"metadata": {"name": name}, "spec": spec})
        await self.settle()

    async def create_pod(self, name="train", *, gpus="2", grace=30, annotations=None, **spec):
        container = {"name": "main", "image": "train:1"}
        container["resources"] = {"limits": {labels.GPU_RESOURCE: gpus}}
        pod = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {
                "containers": [container],
                "terminationGracePeriodSeconds": grace,
                "restartPolicy": "Never",
                **spec,
            },
        }
        await self.plane.create(POD, pod, "default")
        await self.settle()

    # The exchange.

    async def win(self, bid=None, *, name="lease-1", gpus=2):
        bid = bid or (await self.all(self.host, BID))[0]
        metadata = bid["metadata"]
        devices = [
            {"node": "h100-a", "driver": "gpu.bidplane.dev", "pool": "h100-a", "name": f"gpu-{i}"}
            for i in range(gpus)
        ]
        lease = {
            "metadata": {
                "name": name,
                "labels": {labels.AGENT: AGENT_NAME},
                "finalizers": [FINALIZER],
            },
            "spec": {
                "agent": AGENT_NAME,
                "bid": {
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
                "pool": "h100",
                "node": "h100-a",
                "devices": devices,
                "maxPrice": "1.00",
            },
        }
        await self.host.create(GPU_LEASE, lease, SPACE)
        await self.lease_status("Pending", name=name)
        await self.bid_status(metadata["name"], "Won")

    async def lease_status(self, phase, *, name="lease-1", **status):
        lease_status = {"phase": phase, "ready": True, **status}
        await self.host.patch(
            GPU_LEASE, name, {"status": lease_status}, SPACE, subresource="status"
        )

    async def notice(self, seconds, *, name="lease-1"):
        until = rfc3339(self.clock.now() + seconds)
        await self.lease_status("Draining", name=name, reason="Outbid", reclaimAt=until)
        await self.settle()

    async def bid_status(self, name, phase):
        bid_status = {
            "phase": phase,
            "reason": phase if phase == "Won" else "Released",
            "message": ".",
        }
        await self.host.patch(BID, name, {"status": bid_status}, SPACE, subresource="status")

    async def end_lease(self, name="lease-1"):
        """As the exchange does it: say so, and let the object go."""
        await self.lease_status("Released", name=name)
        if not (await self.host.get(GPU_LEASE, name, SPACE))["metadata"].get("deletionTimestamp"):
            await self.host.delete(GPU_LEASE, name, SPACE)
        await self.host.patch(GPU_LEASE, name, {"metadata": {"finalizers": []}}, SPACE)

    # The node.

    async def run_host_pod(self, phase="Running"):
        (pod,) = await self.all(self.host, POD)
        await self.host.patch(
            POD, pod["metadata"]["name"], {"status": {"phase": phase}}, SPACE, subresource="status"
        )
        await self.settle()

    async def remove_host_pod(self):
        (pod,) = await self.all(self.host, POD)
        await self.host.delete(POD, pod["metadata"]["name"], SPACE, grace_seconds=0)

    async def running(self, **pod):
        """A pod that runs on a lease it won."""
        await self.create_pod(**pod)
        await self.win()
        await self.settle()
        await self.lease_status("Active")
        await self.run_host_pod()

    # Looking.

    async def all(self, client, kind):
        return list((await client.list(kind)).items)

    async def names(self, client, kind):
        return [obj["metadata"]["name"] for obj in await self.all(client, kind)]

    async def pod(self, name="train"):
        try:
            return await self.plane.get(POD, name, "default")
        except NotFound:
            return None

    async def lease(self, name="lease-1"):
        return await self.host.get(GPU_LEASE, name, SPACE)

    def seconds_until(self, pod):
        return parse_rfc3339(pod["metadata"]["deletionTimestamp"]) - self.clock.now()


@pytest.fixture
def stories(tmp_path):
    def tell(story, *, admit=admit, agent=True):
        async def whole():
            site = Site(tmp_path)
            await site.start(admit=admit)
            try:
                if agent:
                    await site.agent()
                await story(site)
            finally:
                await site.close()

        run(whole())

    return tell
