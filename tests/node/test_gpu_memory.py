"""An ended pod keeps its GPUs until their memory is seen free; then others may have them."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import NODE, RESOURCE_SLICE
from bidplane.core.devices import freeing
from bidplane.errors import UserError
from bidplane.telemetry.model import Counters

GIB = 1 << 30
CLAIM = {"resourceClaims": [{"name": "gpus", "resourceClaimName": "two"}]}


class Driver:
    """The counters of a driver: what a test says that each GPU of a box has in use."""

    def __init__(self, box: Any) -> None:
        self._box = box
        self.used = {0: GIB // 4, 1: GIB // 4}
        self.is_there = True
        self.reads = 0

    def __call__(self) -> list[Counters]:
        self.reads += 1
        if not self.is_there:
            raise UserError("no driver")
        return [
            Counters(
                node=self._box.name,
                index=index,
                uuid=f"GPU-{self._box.name}-{index}",
                memory_used_bytes=used,
                memory_free_bytes=80 * GIB - used,
            )
            for index, used in self.used.items()
        ]


async def started(box: Any, command: str = "sleep 600") -> Driver:
    """A pod that has both GPUs of a box, and the box's driver."""
    await box.stop()
    driver = Driver(box)
    await box.start(memory=driver)
    await box.claim("two", "gpu-0", "gpu-1")
    await box.create("train", command, pod=CLAIM, resources={"claims": [{"name": "gpus"}]})
    return driver


async def taints(box: Any) -> list[tuple[str, str]]:
    slices = (await box.client.list(RESOURCE_SLICE, fields=f"spec.nodeName={box.name}")).items
    devices = [device for slice_ in slices for device in slice_["spec"]["devices"]]
    found = [(d["name"], t["key"]) for d in devices for t in d.get("taints") or ()]
    return sorted(found)


async def until_gone(box: Any, name: str) -> None:
    async def is_gone():
        return await box.get(name) is None

    await box.until(is_gone)


async def looked_again(box: Any, driver: Driver) -> None:
    """The node has looked at the memory, twice: what the first look led to is done."""
    reads = driver.reads

    def looked():
        box.clock.advance(freeing.LOOK_SECONDS)
        return driver.reads >= reads + 2

    await box.until(looked)


def test_a_deleted_pod_goes_once_the_memory_of_its_gpus_is_seen_free(box):
    async def story(box):
        driver = await started(box)
        await box.until_phase("train", "Running")
        driver.used = {0: 40 * GIB, 1: GIB // 4}
        await box.delete("train")
        message = await box.until_event("train", "MemoryInUse")
        assert "gpu-0 (40.0 GiB) still has memory in use" in message
        await looked_again(box, driver)
        assert await box.phase("train") == "Running"
        driver.used[0] = GIB  # another's desktop, say: more than before, so not free
        await looked_again(box, driver)
        assert await box.phase("train") == "Running"
        driver.used[0] = GIB // 2
        box.clock.advance(2)
        await until_gone(box, "train")
        assert await taints(box) == []

    box(story)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_memory_that_is_never_freed_is_not_for_sale(box, is_restarted):
    async def story(box):
        driver = await started(box, "sleep 1")
        await box.until_phase("train", "Running")
        driver.used[1] = 40 * GIB
        await box.until_event("train", "MemoryInUse")
        assert await box.phase("train") == "Running"
        if is_restarted:
            await box.stop()
            await box.start()
            await box.until_event("train", "MemoryInUse")
        box.clock.advance(freeing.LONGEST_SECONDS - 20)
        await looked_again(box, driver)
        assert await box.phase("train") == "Running"
        box.clock.advance(30)
        await box.until_phase("train", "Succeeded")
        assert await taints(box) == [("gpu-1", freeing.TAINT)]
        assert await node_event(box, "MemoryNotFreed")
        if is_restarted:
            await box.stop()
            await box.start()
            assert await taints(box) == [("gpu-1", freeing.TAINT)]
        driver.is_there = False  # not seen free
        await looked_again(box, driver)
        assert await taints(box) == [("gpu-1", freeing.TAINT)]
        driver.is_there = True
        driver.used[1] = GIB // 4

        async def is_for_sale():
            box.clock.advance(6)
            return await taints(box) == []

        await box.until(is_for_sale)
        assert "the memory of gpu-1 is free" in await node_event(box, "MemoryFreed")

    box(story)


async def node_event(box: Any, reason: str) -> str:
    """The message of a node's Event."""
    from bidplane.api.kinds import EVENT

    async def message():
        assert await box.client.get(NODE, box.name)
        events = (await box.client.list(EVENT)).items
        return [
            event["message"]
            for event in events
            if event["reason"] == reason and event["involvedObject"]["name"] == box.name
        ]

    return (await box.until(message))[0]


def test_a_pod_removed_by_force_leaves_gpus_that_are_not_for_sale(box):
    async def story(box):
        driver = await started(box)
        await box.until_phase("train", "Running")
        driver.used[0] = 40 * GIB
        await box.delete("train", grace_seconds=0)

        async def is_withheld():
            return await taints(box) == [("gpu-0", freeing.TAINT)]

        await box.until(is_withheld)

    box(story)


def test_a_gpu_that_another_pod_still_uses_is_not_waited_for(box):
    async def story(box):
        driver = await started(box)
        await box.until_phase("train", "Running")
        await box.create("beside", "sleep 600", pod=CLAIM, resources={"claims": [{"name": "gpus"}]})
        await box.until_phase("beside", "Running")
        driver.used[0] = 40 * GIB  # whose it is, nobody can tell
        await box.delete("train")
        await until_gone(box, "train")
        assert await taints(box) == []

    box(story)


def test_gpus_that_nothing_measures_are_not_waited_for(box):
    async def story(box):
        driver = await started(box)
        driver.is_there = False
        await box.until_phase("train", "Running")
        await box.delete("train")
        await until_gone(box, "train")

    box(story)
