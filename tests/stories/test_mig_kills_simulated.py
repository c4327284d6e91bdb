"""
A MIG pod from its bid to its end, with each part killed on the way: no instance is made twice,
none is left, and nobody pays for what it did not have. The real wiring under a virtual clock.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, GPU_LEASE, POD
from bidplane.api.pool import Divides, MigSlot
from bidplane.errors import AlreadyExists, NotFound, Unavailable
from bidplane.kube.client import KubeClient
from bidplane.ledger import verify
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import Part, World

FLEET = Fleet(
    nodes=[NodeDeclaration(name="box", product="H100", memory="80Gi", gpus=1, mig=True)],
    pools=[
        PoolDeclaration(
            product="H100",
            divides=Divides.MIG,
            geometry=[MigSlot(profile="1g.10gb", start=2), MigSlot(profile="3g.40gb", start=4)],
        )
    ],
)
LONGEST = 900.0


def pod(name: str, profile: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "x",
        "resources": {"limits": {f"nvidia.com/mig-{profile}": "1"}},
    }
    marks = {labels.SIMULATED_SECONDS: "30", labels.SIMULATED_LOAD_SECONDS: "5"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": marks},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


async def insist(client: KubeClient, kind: Any, obj: dict[str, Any], namespace: str | None) -> None:
    while True:
        try:
            await client.create(kind, obj, namespace)
            return
        except AlreadyExists:
            return
        except Unavailable:
            await asyncio.sleep(0.5)


def instances(world: World) -> int:
    cards = world.nodes.life.partitions("box") if world.nodes else None
    return len(cards._instances.current("GPU-box-0")) if cards else 0


async def story(world: World) -> None:
    await world.start_all()
    spec = {"owner": "o", "refill": "100", "maxPrice": "1.00"}
    agent = {"metadata": {"name": "trainer"}, "spec": spec}
    made = {"apiVersion": AGENT.api_version, "kind": "Agent", **agent}
    await insist(world.client(), AGENT, made, None)

    async def ready() -> bool:
        try:
            found = await world.client().get(AGENT, "trainer")
        except (NotFound, Unavailable):
            return False
        ours = labels.WALLET_FINALIZER in found["metadata"].get("finalizers", ())
        return ours and (found.get("status") or {}).get("phase") == "Ready"

    await world.until(ready, within=LONGEST)
    for name, profile in (("small", "1g.10gb"), ("large", "3g.40gb")):
        await insist(world.client("trainer"), POD, pod(name, profile), "default")

    async def over() -> bool:
        try:
            found = (await world.client("trainer").list(POD)).items
        except (NotFound, Unavailable):
            return False
        phases = [(one.get("status") or {}).get("phase") for one in found]
        return phases == ["Succeeded", "Succeeded"]

    await world.until(over, within=LONGEST)

    async def released() -> bool:
        try:
            return not (await world.client().list(GPU_LEASE)).items
        except Unavailable:
            return False

    await world.until(released, within=LONGEST)

    async def clean() -> bool:
        return instances(world) == 0 and world.is_whole

    await world.until(clean, within=LONGEST)
    world.check()


def played(*kills: tuple[Part, int, float]) -> World:
    async def play() -> World:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), FLEET)
            for part, step, down in kills:
                world.plan_kill(part, step, down=down)
            try:
                await story(world)
            finally:
                await world.stop()
            report = verify(world.ledger_file)
            assert report.is_sound, report.problem
            return world

    return run(play())


@pytest.mark.slow
@pytest.mark.parametrize("part", ["node", "exchange", "server"])
def test_whoever_dies_on_the_way_no_instance_is_left(part: Part) -> None:
    last = played().steps[part]
    assert last > 4
    for step in range(1, last + 1, max(1, last // 5)):
        played((part, step, 0.5))
