"""
Simulated nodes on a real embedded plane, in virtual time.

`stories` runs a coroutine with a `Site`: the host plane, the nodes, and the few words a
test needs.
"""

import asyncio
import random
import tempfile
from pathlib import Path

import pytest

from bidplane.api.kinds import EVENT, NAMESPACE, POD, RESOURCE_CLAIM
from bidplane.drivers.embedded import crds_for
from bidplane.errors import NotFound
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.simulated import SimulatedNodes
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.sim.loop import VirtualClock, run

from .processes import Box, ClusterApi, PlaneApi

FLEET = Fleet(nodes=[NodeDeclaration(name="h100-a", product="H100", gpus=8)])
SPACE = "agent-a"


class Site:
    def __init__(self, folder):
        self.clock = VirtualClock()
        self.tokens = Tokens(b"t" * 32)
        self.planes = Planes(
            folder,
            clock=self.clock,
            tokens=self.tokens,
            crds=crds_for,
            durable=False,
            inline=True,
            dice=random.Random(1),
        )
        self.client = self.planes.client(HOST_PLANE)
        self.nodes = None
        self._task = None

    async def open(self):
        await self.planes.create(HOST_PLANE)
        await self.client.create(NAMESPACE, {"metadata": {"name": SPACE}})
        self.start()
        await asyncio.sleep(0.01)

    def start(self, fleet=FLEET):
        self.nodes = SimulatedNodes(self.client, fleet, clock=self.clock, address="10.0.0.1")
        self._task = asyncio.create_task(self.nodes.run())

    async def kill(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def close(self):
        assert not self._task.done() or self._task.cancelled(), self._task
        await self.kill()
        await self.planes.close()

    async def create(self, name="train", *, node="h100-a", claim=None, policy="Never", **notes):
        annotations = {
            f"bidplane.dev/simulated-{key.replace('_', '-')}": value for key, value in notes.items()
        }
        spec = {
            "nodeName": node,
            "restartPolicy": policy,
            "containers": [{"name": "main", "image": "train:1"}],
        }
        if claim:
            spec["resourceClaims"] = [{"name": "gpus", "resourceClaimName": claim}]
            spec["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
        pod = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        await self.client.create(POD, pod, SPACE)

    async def claim(self, name, *devices):
        exactly = {"deviceClassName": "gpu.bidplane.dev", "count": len(devices)}
        spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
        await self.client.create(RESOURCE_CLAIM, {"metadata": {"name": name}, "spec": spec}, SPACE)
        results = [
            {"request": "gpus", "driver": "gpu.bidplane.dev", "pool": "h100-a", "device": device}
            for device in devices
        ]
        status = {"allocation": {"devices": {"results": results}}}
        await self.client.patch(
            RESOURCE_CLAIM, name, {"status": status}, SPACE, subresource="status"
        )

    async def pod(self, name="train"):
        try:
            return await self.client.get(POD, name, SPACE)
        except NotFound:
            return None

    async def phase(self, name="train"):
        found = await self.pod(name)
        return found["status"]["phase"] if found else "gone"

    async def events(self):
        return [event["reason"] for event in (await self.client.list(EVENT, SPACE)).items]


@pytest.fixture
def stories(tmp_path):
    def tell(story):
        async def whole():
            site = Site(tmp_path)
            await site.open()
            try:
                await story(site)
            finally:
                await site.close()

        run(whole())

    return tell


def _box(api, folder):
    def tell(story, **settings):
        async def whole():
            box = Box(api, folder)
            await box.open(**settings)
            try:
                await story(box)
            finally:
                await box.close()

        asyncio.run(whole())

    return tell


@pytest.fixture(params=["plane", pytest.param("kube", marks=[pytest.mark.kube, pytest.mark.slow])])
def box(request, tmp_path, open_folder):
    """Runs a story with a node of this machine, on a plane and on a real kube-apiserver."""
    if request.param == "kube":
        return _box(ClusterApi(request.getfixturevalue("cluster")), open_folder)
    return _box(PlaneApi(tmp_path), open_folder)


@pytest.fixture
def open_folder():
    """A folder that every user may pass through: pods have users of their own."""
    with tempfile.TemporaryDirectory(prefix="bidplane-node-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder
