"""
Small MIG instances on two GPUs move together, so that who pays for a whole GPU gets one: instances
are unmade and made on the node, pods go on where they are now. The real wiring, a virtual clock.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import AGENT, GPU_LEASE, POD
from bidplane.api.pool import Divides, MigSlot
from bidplane.core.devices.mig import Slot
from bidplane.errors import NotFound
from bidplane.ledger import verify
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import World

FLEET = Fleet(
    nodes=[NodeDeclaration(name="box", product="H100", memory="80Gi", gpus=2, mig=True)],
    pools=[
        PoolDeclaration(
            product="H100",
            divides=Divides.MIG,
            geometry=[
                MigSlot(profile="1g.10gb", start=0),
                MigSlot(profile="1g.10gb", start=1),
                MigSlot(profile="3g.40gb", start=4),
            ],
            notice_seconds=5,
            restart_seconds=5,
        )
    ],
)
SMALL = {"nvidia.com/mig-1g.10gb": "1"}


def agent(name: str, **more: Any) -> dict[str, Any]:
    spec = {"owner": f"owner-of-{name}", "refill": "1000", "maxPrice": "2.00", **more}
    return {
        "apiVersion": AGENT.api_version,
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(name: str, limits: dict[str, str], seconds: int) -> dict[str, Any]:
    marks = {labels.SIMULATED_SECONDS: str(seconds), labels.CHECKPOINT_COMMAND: "save"}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": marks},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def instances(world: World) -> list[list[Slot]]:
    assert world.nodes is not None
    cards = world.nodes.life.partitions("box")
    assert cards is not None
    return [cards._instances.current(f"GPU-box-{at}") for at in (0, 1)]


async def until(world: World, plane: str, name: str, phase: str) -> None:
    async def reached() -> bool:
        try:
            found = await world.client(plane).get(POD, name, "default")
        except NotFound:
            return False
        return (found.get("status") or {}).get("phase") == phase

    await world.until(reached, within=900)


async def ready(world: World) -> bool:
    found = (await world.client().list(AGENT)).items
    return len(found) == 2 and all(
        labels.WALLET_FINALIZER in a["metadata"].get("finalizers", ())
        and (a.get("status") or {}).get("phase") == "Ready"
        for a in found
    )


async def story(world: World) -> None:
    await world.start_all()
    await world.client().create(AGENT, agent("small", movable=True), None)
    await world.client().create(AGENT, agent("big"), None)
    await world.until(lambda: ready(world), within=60)
    small, big = world.client("small"), world.client("big")
    for name, seconds in (("short", 20), ("one", 400), ("two", 400)):
        await small.create(POD, pod(name, SMALL, seconds), "default")
        await until(world, "small", name, "Running")
    await until(world, "small", "short", "Succeeded")
    await asyncio.sleep(70)  # who has just come is not asked to move
    assert sorted(map(len, instances(world))) == [1, 1], "not scattered"
    await big.create(POD, pod("whole", {"nvidia.com/gpu": "1"}, 60), "default")
    await until(world, "big", "whole", "Running")
    (lease,) = (await world.client().list(GPU_LEASE, "agent-big")).items
    (device,) = lease["spec"]["devices"]
    left = int(device["name"].removeprefix("gpu-"))
    assert instances(world)[left] == [], "nothing of it is left on the GPU that was sold"
    for name in ("one", "two"):
        await until(world, "small", name, "Running")
    assert instances(world)[1 - left] == [Slot("1g.10gb", 0), Slot("1g.10gb", 1)]
    for plane, name in (("big", "whole"), ("small", "one"), ("small", "two")):
        await until(world, plane, name, "Succeeded")
    assert world.ledger is not None
    (wallet,) = world.ledger.wallets_named("small")
    (gone,) = [one for one in world.ledger.leases_of(wallet.id) if one.reason == "Moved"]
    assert gone.compensation > 0
    world.check()


def test_who_pays_for_a_whole_gpu_gets_one_out_of_two_that_are_cut() -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), FLEET)
            try:
                await story(world)
            finally:
                await world.stop()
            report = verify(world.ledger_file)
            assert report.is_sound, report.problem

    run(play())
