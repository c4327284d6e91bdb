"""A story with one agent, `trainer`, through the whole wiring under a virtual clock."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from bidplane.api import labels
from bidplane.api.kinds import AGENT
from bidplane.ledger import verify
from bidplane.node.fleet import Fleet
from bidplane.sim.loop import run
from bidplane.sim.world import World


def played(story: Callable[[World], Awaitable[None]], fleet: Fleet) -> None:
    """From an agent that is ready to a ledger that adds up."""

    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), fleet)
            try:
                await world.start_all()
                await _has_agent(world)
                await story(world)
                world.check()
            finally:
                await world.stop()
            report = verify(world.ledger_file)
            assert report.is_sound, report.problem

    run(play())


async def _has_agent(world: World) -> None:
    spec = {"owner": "o", "refill": "100", "maxPrice": "1.00"}
    agent = {"metadata": {"name": "trainer"}, "spec": spec}
    await world.client().create(
        AGENT, {"apiVersion": AGENT.api_version, "kind": "Agent", **agent}, None
    )

    async def ready() -> bool:
        found = await world.client().get(AGENT, "trainer")
        ours = labels.WALLET_FINALIZER in found["metadata"].get("finalizers", ())
        return ours and (found.get("status") or {}).get("phase") == "Ready"

    await world.until(ready, within=60)
