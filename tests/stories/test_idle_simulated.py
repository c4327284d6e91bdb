"""
An idle lease ranks by its bid alone, told from the pod to the price: the real wiring under a
virtual clock, with the counters that simulated GPUs show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bidplane.api.kinds import BID, GPU_LEASE
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration

from .test_agents_life_simulated import TWO, Stage, play, pod

IDLE = "idle: no incumbent weight"
# A little above the trainer's 1.00, and far below what its weight would make of that.
ABOVE = "1.01"


async def idle_is(stage: Stage, agent: str, idle: bool) -> None:
    async def so() -> bool:
        leases = (await stage.world.client(agent).list(GPU_LEASE)).items
        return [lease["status"].get("message") == IDLE for lease in leases] == [idle]

    await stage.world.until(so, within=60)


async def pass_time(stage: Stage, seconds: float) -> None:
    end = stage.now + seconds

    async def over() -> bool:
        return stage.now >= end

    await stage.world.until(over, within=seconds + 60)


@pytest.mark.parametrize("percent", ["0", "70"])
def test_who_does_nothing_loses_to_a_bid_just_above_and_who_works_keeps(
    tmp_path: Path, percent: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await stage.agent("chat")
        own = pod("train", simulated_utilisation_percent=percent)
        await stage.apply("trainer", own)
        await stage.until("trainer", "train", "Running")
        await pass_time(stage, 280)
        await idle_is(stage, "trainer", False)
        await pass_time(stage, 60)
        await idle_is(stage, "trainer", percent == "0")
        await stage.apply("chat", pod("ask", max_price=ABOVE))
        if percent == "0":
            await stage.until("chat", "ask", "Running", within=60)
            said = await stage.reasons("trainer")
            assert "Outbid" in said
            assert await stage.messages("trainer", "Outbid", IDLE)
        else:
            await pass_time(stage, 60)
            assert (await stage.pod("chat", "ask"))["status"]["phase"] == "Pending"
            assert (await stage.pod("trainer", "train"))["status"]["phase"] == "Running"

    play(tmp_path, TWO, story)


def test_a_lease_nobody_uses_is_idle_where_gpus_tell_nothing(tmp_path: Path) -> None:
    """By hand, so that it stays; its pod has ended, and the node's server is away."""

    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        by_hand: dict[str, Any] = {
            "apiVersion": BID.api_version,
            "kind": BID.kind,
            "metadata": {"name": "mine"},
            "spec": {"gpus": 2, "maxPrice": "1.00"},
        }
        await stage.apply("trainer", by_hand, BID)
        await stage.apply("trainer", pod("train", seconds=30, bid="mine"))
        await stage.until("trainer", "train", "Succeeded")
        await stage.world.kill("node")
        await pass_time(stage, 250)
        await idle_is(stage, "trainer", False)
        await pass_time(stage, 100)
        await idle_is(stage, "trainer", True)

    play(tmp_path, TWO, story)


def test_what_a_pool_says_of_idleness_is_kept(tmp_path: Path) -> None:
    never = Fleet(
        nodes=[NodeDeclaration(name="h100", product="H100", gpus=2)],
        pools=[PoolDeclaration(product="H100", floor_price="0.20", idle_seconds=0)],
    )

    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await stage.apply("trainer", pod("train", simulated_utilisation_percent="0"))
        await stage.until("trainer", "train", "Running")
        await pass_time(stage, 900)
        await idle_is(stage, "trainer", False)

    play(tmp_path, never, story)
