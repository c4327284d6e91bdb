"""
A GPU is sold again once its memory is seen free: the real wiring under a virtual clock, with the
counters that simulated GPUs show.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from bidplane.api.kinds import GPU_LEASE, POD, RESOURCE_SLICE

from .test_agents_life_simulated import TWO, Stage, play, pod


async def memory_used(stage: Stage) -> list[int]:
    """The bytes in use on each GPU, as a reader of the node's counters sees them."""
    counters = await stage.world._counters([])
    return [counter.memory_used_bytes or 0 for counter in counters]


async def first_holds_and_ends(stage: Stage, linger: str) -> float:
    """The first agent's pod has the whole node and is deleted; the second's waits for it."""
    await stage.agent("first")
    await stage.agent("second", price="0.50")
    own = pod("train", simulated_memory_linger_seconds=linger)
    await stage.apply("first", own)
    await stage.until("first", "train", "Running")
    await stage.apply("second", pod("next"))
    await asyncio.sleep(5)
    await stage.world.client("first").delete(POD, "train", "default")
    return stage.now


def test_a_gpu_is_sold_again_once_its_memory_is_seen_free(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        deleted = await first_holds_and_ends(stage, "20")
        await asyncio.sleep(15)
        assert min(await memory_used(stage)) > 10 << 30
        assert (await stage.pod("second", "next"))["status"]["phase"] == "Pending"
        (message,) = await stage.messages("first", "MemoryInUse", "gpu-0")
        assert "GiB" in message
        await stage.until("second", "next", "Running", within=60)
        assert 20 <= stage.now - deleted < 30
        # A lease that ended is paid no more.
        assert not (await stage.world.client("first").list(GPU_LEASE)).items

    play(tmp_path, TWO, story)


def test_a_job_that_ends_by_itself_has_ended_once_its_memory_is_seen_free(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("first")
        own = pod("train", seconds=10, simulated_memory_linger_seconds="20")
        await stage.apply("first", own)
        await stage.until("first", "train", "Running")
        began = stage.now
        await stage.until("first", "train", "Succeeded", within=60)
        assert 29 <= stage.now - began < 35

    play(tmp_path, TWO, story)


def test_a_gpu_whose_memory_is_never_seen_free_is_not_for_sale(tmp_path: Path) -> None:
    """Its pod ends after a minute, and nobody pays; whoever waits for it is told why."""

    async def story(stage: Stage) -> None:
        deleted = await first_holds_and_ends(stage, "600")
        await stage.until("second", "next", "Pending")

        async def is_given_back() -> bool:
            return not (await stage.world.client("first").list(GPU_LEASE)).items

        await stage.world.until(is_given_back, within=90)
        assert 60 <= stage.now - deleted < 75
        slice_ = await stage.host.get(RESOURCE_SLICE, "h100-gpus")
        taints = [device["taints"][0]["key"] for device in slice_["spec"]["devices"]]
        assert taints == ["bidplane.dev/memory-in-use"] * 2
        await asyncio.sleep(60)
        waiting = await stage.pod("second", "next")
        assert waiting["status"]["phase"] == "Pending"
        reasons = [c.get("message", "") for c in waiting["status"]["conditions"]]
        assert any("memory-in-use" in reason for reason in reasons), reasons
        await stage.until("second", "next", "Running", within=600)
        assert 600 <= stage.now - deleted < 620
        slice_ = await stage.host.get(RESOURCE_SLICE, "h100-gpus")
        assert not any(device.get("taints") for device in slice_["spec"]["devices"])

    play(tmp_path, TWO, story)


def test_who_displaces_somebody_waits_for_the_memory(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("first")
        await stage.agent("second", price="9.00")
        await stage.apply("first", pod("train", simulated_memory_linger_seconds="30"))
        await stage.until("first", "train", "Running")
        await asyncio.sleep(20)
        await stage.apply("second", pod("answer", seconds=10))
        seen: list[int] = []

        async def runs() -> bool:
            found = await stage.pod("second", "answer")
            if (found.get("status") or {}).get("phase") == "Running":
                return True
            seen[:] = await memory_used(stage)
            return False

        asked = stage.now
        await stage.world.until(runs, within=120)
        assert stage.now - asked > 30
        assert max(seen) < 1 << 30  # before it runs, nobody's memory is left

    play(tmp_path, TWO, story)


def test_the_nodes_restart_does_not_sell_memory_in_use(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        deleted = await first_holds_and_ends(stage, "40")
        await asyncio.sleep(10)
        await stage.world.kill("node")
        await stage.world.start("node")
        await stage.until("second", "next", "Running", within=120)
        assert 40 <= stage.now - deleted < 50

    play(tmp_path, TWO, story)
