"""A link that gets worse under a lease reaches whoever pays for it: slice, Event, condition."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import EVENT, GPU_LEASE, NODE, POD, RESOURCE_SLICE
from bidplane.api.lease import LINK_DEGRADED
from bidplane.node.fleet import Card, Fleet, NodeDeclaration
from bidplane.sim.world import World

from .playing import played
from .test_pcie_box_simulated import pod, runs_on

WIDTH, NVLINKS = "bidplane.dev/pcieLinkWidth", "bidplane.dev/nvlinksPerPeer"
CARDS = Fleet(nodes=[NodeDeclaration(name="box", product="RTX-6000", cards=[Card()] * 2)])
BRIDGED = Fleet(nodes=[NodeDeclaration(name="box", product="H100", gpus=2, nvlink=18)])


async def retrain(world: World, attribute: str, value: int) -> None:
    """The node's driver publishes its first card anew, as it is now."""
    host = world.client()
    spec = (await host.get(RESOURCE_SLICE, "box-gpus"))["spec"]
    first, *others = spec["devices"]
    attributes = {**first["attributes"], attribute: {"int": value}}
    pool = {**spec["pool"], "generation": spec["pool"]["generation"] + 1}
    devices = [{**first, "attributes": attributes}, *others]
    await host.patch(RESOURCE_SLICE, "box-gpus", {"spec": {"devices": devices, "pool": pool}})


def condition(obj: Any) -> tuple[str, str]:
    for one in (obj.get("status") or {}).get("conditions") or ():
        if one["type"] == LINK_DEGRADED:
            return one["status"], one["message"]
    return "", ""


@pytest.mark.parametrize(
    ("fleet", "attribute", "healthy", "now", "words"),
    [
        (CARDS, WIDTH, 16, 4, "gpu-0: its PCIe link fell from x16 to x4"),
        (BRIDGED, NVLINKS, 18, 12, "gpu-0: 6 of 18 NVLinks to each peer are lost"),
    ],
    ids=["pcie", "nvlink"],
)
def test_a_link_that_degrades_under_a_lease_reaches_its_agent(
    fleet: Fleet, attribute: str, healthy: int, now: int, words: str
) -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(POD, pod("tp", 2), "default")
        assert await runs_on(world, "tp") == [0, 1]
        lease = (await plane.get(POD, "tp", "default"))["spec"]["nodeName"]

        async def shown(status: str, message: str, value: int) -> bool:
            node = await plane.get(NODE, lease)
            mirror = await plane.get(GPU_LEASE, lease, "default")
            slice_ = (await plane.get(RESOURCE_SLICE, lease))["spec"]
            first = slice_["devices"][0]["attributes"][attribute]["int"]
            on_node = condition(node) == (("True", message) if status == "True" else ("", ""))
            return first == value and on_node and condition(mirror) == (status, message)

        await retrain(world, attribute, now)
        await world.until(lambda: shown("True", words, now), within=60)
        events = [
            (one["involvedObject"]["kind"], one["message"])
            for space in ("default", None)
            for one in (await plane.list(EVENT, space)).items
            if one["reason"] == LINK_DEGRADED
        ]
        assert {("Pod", words), ("Node", words)} <= set(events)

        # Reseated, it is said to be as it was; the work went on all the while.
        await retrain(world, attribute, healthy)
        await world.until(lambda: shown("False", "its links are restored", healthy), within=60)
        assert (await plane.get(POD, "tp", "default"))["status"]["phase"] == "Running"

    played(story, fleet)
