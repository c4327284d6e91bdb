"""A program's lease in the simulator: won, kept by its beat, given back, lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.kinds import AGENT, BID, GPU_LEASE
from bidplane.client import asking
from bidplane.client.leasing import AsyncLeasing, LeaseProgress, LeaseTimeout, Notice, Refused
from bidplane.ledger import verify
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import World

FLEET = Fleet(
    nodes=[NodeDeclaration(name="h100", product="H100", gpus=2)],
    pools=[
        PoolDeclaration(product="H100", floor_price="0.20", notice_seconds=5, restart_seconds=5)
    ],
)


class Stage:
    def __init__(self, world: World) -> None:
        self.world = world

    async def agent(self, name: str) -> None:
        agent = {
            "apiVersion": AGENT.api_version,
            "kind": "Agent",
            "metadata": {"name": name},
            "spec": {"owner": name, "refill": "100"},
        }
        host = self.world.client()
        await host.create(AGENT, agent)

        async def ready() -> bool:
            agent_object = await host.get(AGENT, name)
            return (agent_object.get("status") or {}).get("phase") == "Ready"

        await self.world.until(ready, within=60)

    def lease(self, agent: str, *, gpus: int = 2, price: str = "1.00", **more: Any) -> AsyncLeasing:
        hold = more.pop("hold_seconds", 60)
        bid = asking.bid("held", gpus=gpus, max_price=price, hold_seconds=hold)
        return AsyncLeasing(
            self.world.client(agent), bid, namespace="default", clock=self.world.clock, **more
        )

    async def nothing_leased(self) -> bool:
        return not (await self.world.client().list(GPU_LEASE)).items


def play(
    folder: Path, story: Callable[[Stage], Coroutine[Any, Any, None]], fleet: Fleet = FLEET
) -> None:
    async def whole() -> None:
        world = World(folder, fleet)
        await world.start_all()
        try:
            await story(Stage(world))
            world.check()
        finally:
            await world.stop()
        assert verify(world.ledger_file).problem == ""

    run(whole())


def test_it_yields_the_devices_keeps_them_and_gives_them_back(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        reports: list[LeaseProgress] = []
        async with stage.lease("trainer", on_progress=reports.append) as holding:
            assert [d.uuid for d in holding.devices] == ["GPU-h100-0", "GPU-h100-1"]
            assert holding.env["CUDA_VISIBLE_DEVICES"] == "GPU-h100-0,GPU-h100-1"
            assert holding.env["BIDPLANE_NODE"] == "h100"
            # Far longer than a claim or a hold lasts by itself.
            await asyncio.sleep(600)
            assert not holding.lost
            assert holding.notice is None
        assert reports
        await stage.world.until(stage.nothing_leased, within=10)

    play(tmp_path, story)


def test_one_gpu_is_bought_at_once_where_there_is_a_float(tmp_path: Path) -> None:
    fleet = Fleet(
        nodes=[NodeDeclaration(name="big", product="H100", gpus=20)],
        pools=[PoolDeclaration(product="H100", instant_float_percent=5)],
    )

    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await asyncio.sleep(3)
        async with stage.lease("trainer", gpus=1):
            assert stage.world.ledger is not None
            (lease,) = stage.world.ledger.live_leases()
            assert lease.instant
        await stage.world.until(stage.nothing_leased, within=10)

    play(tmp_path, story, fleet)


def test_an_exception_gives_it_back(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        with pytest.raises(ZeroDivisionError):
            async with stage.lease("trainer"):
                raise ZeroDivisionError
        await stage.world.until(stage.nothing_leased, within=10)

    play(tmp_path, story)


def test_the_lease_of_a_program_that_died_ends_by_itself(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        leasing = stage.lease("trainer", hold_seconds=30)
        await leasing.__aenter__()
        for task in leasing._tasks:  # dead: no beat, and nobody gives anything back
            task.cancel()
        await asyncio.sleep(19)
        assert not await stage.nothing_leased()
        await stage.world.until(stage.nothing_leased, within=15)
        assert not (await stage.world.client("trainer").list(BID)).items

    play(tmp_path, story)


def test_a_server_that_restarts_ends_no_hold(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        async with stage.lease("trainer", hold_seconds=30) as holding:
            await stage.world.kill("server")
            await asyncio.sleep(60)
            await stage.world.start("server")
            await asyncio.sleep(60)
            assert not holding.lost
            assert not await stage.nothing_leased()

    play(tmp_path, story)


def test_a_notice_is_told_and_the_devices_are_free_when_it_is_over(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await stage.agent("chat")
        notices: list[Notice] = []
        async with stage.lease("trainer", on_notice=notices.append) as holding:
            await asyncio.sleep(20)
            # The holder does not leave: the next one gets the devices all the same.
            async with stage.lease("chat", price="9.00", timeout=30) as urgent:
                assert [n.reason for n in notices] == ["Outbid"]
                assert holding.notice is notices[0]
                assert holding.lost
                assert urgent.devices == holding.devices

    play(tmp_path, story)


def test_a_wait_that_is_too_long_takes_the_bid_back_and_says_why(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await stage.agent("chat")
        async with stage.lease("chat", price="2.00"):
            with pytest.raises(LeaseTimeout, match="To win now, set"):
                async with stage.lease("trainer", timeout=10):
                    raise AssertionError("nothing was free")
            assert not (await stage.world.client("trainer").list(BID)).items

    play(tmp_path, story)


def test_what_can_never_win_is_refused_at_once(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        with pytest.raises(Refused):
            async with stage.lease("trainer", gpus=8):
                raise AssertionError("there are two GPUs")

    play(tmp_path, story)
