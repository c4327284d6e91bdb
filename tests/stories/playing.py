"""A story of agents, through the whole wiring under a virtual clock."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import AGENT, POD
from bidplane.ledger import verify
from bidplane.node.fleet import Fleet
from bidplane.sim.loop import run
from bidplane.sim.world import World


def played(story: Callable[[World], Awaitable[None]], fleet: Fleet, *agents: str) -> None:
    """From agents that are ready, `trainer` if none is named, to a ledger that adds up."""

    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), fleet)
            try:
                await world.start_all()
                for name in agents or ("trainer",):
                    await _has_agent(world, name)
                await story(world)
                world.check()
            finally:
                await world.stop()
            report = verify(world.ledger_file)
            assert report.is_sound, report.problem

    run(play())


def agent(name: str) -> dict[str, Any]:
    return {
        "apiVersion": AGENT.api_version,
        "kind": AGENT.kind,
        "metadata": {"name": name},
        "spec": {"owner": name, "refill": "100", "maxPrice": "1.00"},
    }


async def _has_agent(world: World, name: str) -> None:
    await world.client().create(AGENT, agent(name), None)

    async def ready() -> bool:
        found = await world.client().get(AGENT, name)
        ours = labels.WALLET_FINALIZER in found["metadata"].get("finalizers", ())
        return ours and (found.get("status") or {}).get("phase") == "Ready"

    await world.until(ready, within=60)


async def said(world: World, name: str, reason: str) -> str:
    """What the pod's condition says, once it has that reason."""
    message = ""

    async def there() -> bool:
        nonlocal message
        found = await world.client("trainer").get(POD, name, "default")
        for one in (found.get("status") or {}).get("conditions") or ():
            if one["type"] == "PodScheduled" and one.get("reason") == reason:
                message = one["message"]
                return True
        return False

    await world.until(there, within=120)
    return message
