"""
An agent that says its restarts are heavy, and whose pods are ready at once, is believed three
times. The real wiring under a virtual clock.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import AGENT, GPU_LEASE, POD
from bidplane.errors import NotFound
from bidplane.ledger import verify
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import World

FLEET = Fleet(
    nodes=[NodeDeclaration(name="box", product="H100", gpus=2)],
    pools=[PoolDeclaration(product="H100", restart_seconds=5)],
)


def agent(name: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": AGENT.api_version,
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": {"owner": name, "refill": "100", **more},
    }


def pod(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {labels.GPU_RESOURCE: "2"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {labels.SIMULATED_SECONDS: "20"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def test_who_starts_at_once_is_believed_three_times() -> None:
    async def story() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), FLEET)
            await world.start_all()
            try:
                await world.client().create(AGENT, agent("claims", restartClass="heavy"), None)
                plane = world.client("claims")
                for n in range(4):
                    name = f"p{n}"

                    async def made(name: str = name) -> bool:
                        try:
                            await plane.create(POD, pod(name), "default")
                        except NotFound:  # its plane is not there yet
                            return False
                        return True

                    async def done(name: str = name) -> bool:
                        found = await plane.get(POD, name, "default")
                        over = (found.get("status") or {}).get("phase") == "Succeeded"
                        return over and not (await world.client().list(GPU_LEASE)).items

                    await world.until(made, within=60)
                    await world.until(done, within=600)
                world.check()
                assert world.ledger is not None
                (wallet,) = world.ledger.wallets_named("claims")
                leases = sorted(world.ledger.leases_of(wallet.id), key=lambda one: one.won_at)
                assert [one.restart_seconds for one in leases] == [180, 180, 180, 5]
                assert [one.up_at > 0 for one in leases] == [True, True, True, False]
            finally:
                await world.stop()
            assert verify(world.ledger_file).is_sound

    run(story())
