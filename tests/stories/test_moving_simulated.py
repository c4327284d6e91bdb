"""
Room is made for a block: a pod whose agent agreed to it is evicted with notice, bids again and
goes on on GPUs that were kept for it, at its old price; the block's pod runs. The real wiring
under a virtual clock; and once more with exchange and server killed on the way.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, GPU_LEASE, POD
from bidplane.errors import AlreadyExists, NotFound, Unavailable
from bidplane.kube.client import KubeClient
from bidplane.ledger import verify
from bidplane.ledger.records import Lease
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import Part, World

FLEET = Fleet(
    nodes=[NodeDeclaration(name=f"n{n}", product="H100", gpus=4) for n in (1, 2)],
    pools=[PoolDeclaration(product="H100", notice_seconds=5, restart_seconds=5)],
)
LONGEST = 1200.0


def agent(name: str, **more: Any) -> dict[str, Any]:
    spec = {"owner": f"owner-of-{name}", "refill": "1000", "maxPrice": "2.00", **more}
    return {
        "apiVersion": AGENT.api_version,
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(name: str, gpus: int, seconds: int) -> dict[str, Any]:
    limits = {labels.GPU_RESOURCE: str(gpus)}
    marks = {labels.SIMULATED_SECONDS: str(seconds), labels.CHECKPOINT_COMMAND: "save"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": marks},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
        },
    }


async def insist(client: KubeClient, kind: Any, obj: dict[str, Any]) -> None:
    while True:
        try:
            await client.create(kind, obj, "default")
            return
        except AlreadyExists:
            return
        except Unavailable:
            await asyncio.sleep(0.5)


class Story:
    def __init__(self, world: World) -> None:
        self.world = world

    async def play(self) -> None:
        world = self.world
        await world.start_all()
        await insist(world.client(), AGENT, agent("small", movable=True))
        await insist(world.client(), AGENT, agent("big"))
        await world.until(self._ready, within=LONGEST)
        small, big = world.client("small"), world.client("big")
        # Two on one machine, the third on the other; then one of the first two ends.
        await insist(small, POD, pod("short", 2, 20))
        await self._until("small", "short", "Running")
        await insist(small, POD, pod("one", 2, 300))
        await self._until("small", "one", "Running")
        await insist(small, POD, pod("two", 2, 300))
        await self._until("small", "two", "Running")
        await self._until("small", "short", "Succeeded")
        await asyncio.sleep(70)  # who has just come is not asked to move
        await insist(big, POD, pod("block", 4, 30))
        await self._until("big", "block", "Succeeded")
        for name in ("one", "two"):
            await self._until("small", name, "Succeeded")
        await world.until(self._all_released, within=LONGEST)
        await world.until(self._whole, within=LONGEST)
        world.check()

    def leases(self, name: str) -> list[Lease]:
        ledger = self.world.ledger
        assert ledger is not None
        (wallet,) = ledger.wallets_named(name)
        return ledger.leases_of(wallet.id)

    async def _until(self, plane: str, name: str, phase: str) -> None:
        async def reached() -> bool:
            try:
                found = await self.world.client(plane).get(POD, name, "default")
            except NotFound:
                return False
            return (found.get("status") or {}).get("phase") in (phase, "Succeeded")

        await self.world.until(reached, within=LONGEST)

    async def _ready(self) -> bool:
        found = (await self.world.client().list(AGENT)).items
        return len(found) == 2 and all(
            (a.get("status") or {}).get("phase") == "Ready"
            and labels.WALLET_FINALIZER in a["metadata"].get("finalizers", ())
            for a in found
        )

    async def _all_released(self) -> bool:
        return not (await self.world.client().list(GPU_LEASE)).items

    async def _whole(self) -> bool:
        return self.world.is_whole


def played(*kills: tuple[Part, int, float]) -> tuple[World, list[Lease], list[Lease]]:
    async def play() -> tuple[World, list[Lease], list[Lease]]:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), FLEET)
            for part, step, down in kills:
                world.plan_kill(part, step, down=down)
            story = Story(world)
            try:
                await story.play()
                found = story.leases("small"), story.leases("big")
            finally:
                await world.stop()
            report = verify(world.ledger_file)
            assert report.is_sound, report.problem
            return world, *found

    return run(play())


def check(small: list[Lease], big: list[Lease]) -> None:
    moved = [lease for lease in small if lease.reason == "Moved"]
    assert len(moved) == 1
    (gone,) = moved
    assert gone.compensation > 0
    (again,) = [
        lease for lease in small if lease.moved_from == gone.id and not lease.is_reservation
    ]
    assert again.node != gone.node
    assert again.win_price == gone.price
    assert again.charged > 0
    (block,) = [lease for lease in big if lease.charged]
    assert {device.node for device in block.devices} == {gone.node}
    assert len(block.devices) == 4
    assert not [lease for lease in small if lease.reason == "Outbid"]


def test_the_small_one_makes_room_and_goes_on() -> None:
    _, small, big = played()
    check(small, big)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["exchange", "server"])
def test_whoever_dies_on_the_way_nothing_is_lost(part: Part) -> None:
    """At every few steps from the block's bid to the end."""
    last = played()[0].steps[part]
    for step in range(last // 2, last + 1, max(1, last // 8)):
        _, small, big = played((part, step, 0.3))
        check(small, big)
