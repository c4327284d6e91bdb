"""
A box of PCIe cards: a pod has as many of its cards as are free, on the best linked ones, and pays
for those it has; cards on one link only where it asks for that.
"""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.kinds import GPU_LEASE, POD, RESOURCE_CLAIM
from bidplane.api.money import GPU_WEIGHT
from bidplane.node.fleet import Card, Fleet, NodeDeclaration
from bidplane.sim.world import World

from .playing import played, said

EIGHT = Fleet(nodes=[NodeDeclaration(name="box", product="RTX-6000", cards=[Card()] * 8)])
# Two cards on each host bridge, two host bridges on each NUMA node.
BRIDGES = Fleet(
    nodes=[
        NodeDeclaration(
            name="box",
            product="RTX-6000",
            cards=[Card(numa=n // 4, root=f"pci0000:{n // 2:02x}") for n in range(8)],
        )
    ]
)
# The first users' box: four cards on sixteen lanes, beside narrower ones.
QUARTET = Fleet(
    nodes=[
        NodeDeclaration(
            name="box",
            product="RTX-6000",
            cards=[Card(width=4), *[Card(width=16)] * 4, Card(width=4, max_width=16)],
        )
    ]
)


def pod(name: str, gpus: int, seconds: int = 600, **annotations: Any) -> dict[str, Any]:
    limits = {labels.GPU_RESOURCE: str(gpus)}
    notes = {labels.SIMULATED_SECONDS: str(seconds), **annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
        },
    }


def claiming(name: str, count: int, *, one_link: bool = False) -> list[dict[str, Any]]:
    """A claim for so many cards on sixteen lanes, and a pod that has it."""
    wide = (
        '"pcieLinkWidth" in device.attributes["bidplane.dev"] &&'
        ' device.attributes["bidplane.dev"].pcieLinkWidth == 16'
    )
    exactly = {
        "deviceClassName": "gpu.nvidia.com",
        "count": count,
        "selectors": [{"cel": {"expression": wide}}],
    }
    devices: dict[str, Any] = {"requests": [{"name": "gpus", "exactly": exactly}]}
    if one_link:
        devices["constraints"] = [{"matchAttribute": labels.LINK_DOMAIN_ATTRIBUTE}]
    claim = {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpus"}]}}
    user = pod(name, 0)
    user["spec"]["containers"] = [container]
    user["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
    return [claim, user]


async def runs_on(world: World, name: str) -> list[int]:
    """The cards a pod has, once it runs."""

    async def running() -> bool:
        found = await world.client("trainer").get(POD, name, "default")
        return bool((found.get("status") or {}).get("phase") == "Running")

    await world.until(running, within=120)
    found = await world.client("trainer").get(POD, name, "default")
    lease = await world.client("trainer").get(GPU_LEASE, found["spec"]["nodeName"], "default")
    return sorted(int(device["name"].rpartition("-")[2]) for device in lease["spec"]["devices"])


async def weight(world: World, name: str) -> int:
    """How many GPUs a pod's lease pays for."""
    found = await world.client("trainer").get(POD, name, "default")
    lease = await world.client("trainer").get(GPU_LEASE, found["spec"]["nodeName"], "default")
    return int(lease["spec"]["weight"]) // GPU_WEIGHT


@pytest.mark.parametrize("fleet", [EIGHT, BRIDGES], ids=["undeclared", "two-to-a-bridge"])
@pytest.mark.parametrize("gpus", [3, 4, 5, 6, 8])
def test_a_pod_has_any_number_of_a_pcie_boxs_cards_and_pays_for_so_many(
    fleet: Fleet, gpus: int
) -> None:
    async def story(world: World) -> None:
        await world.client("trainer").create(POD, pod("tp", gpus), "default")
        assert len(await runs_on(world, "tp")) == gpus
        assert await weight(world, "tp") == gpus

    played(story, fleet)


def test_pods_fill_a_box_to_its_last_card_on_the_best_linked_sets() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(POD, pod("three", 3), "default")
        assert await runs_on(world, "three") == [0, 1, 2]  # one NUMA node
        await plane.create(POD, pod("four", 4), "default")
        assert await runs_on(world, "four") == [4, 5, 6, 7]  # the other, whole
        await plane.create(POD, pod("one", 1), "default")
        assert await runs_on(world, "one") == [3]

    played(story, BRIDGES)


def test_one_link_domain_is_had_where_it_is_asked_for() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        linked: dict[str, Any] = {labels.LINK: "domain"}
        await plane.create(POD, pod("tp", 4, **linked), "default")
        assert "link domain" in await said(world, "tp", "LargerThanEveryDomain")
        await plane.create(POD, pod("pair", 2, **linked), "default")
        assert await runs_on(world, "pair") in ([0, 1], [2, 3], [4, 5], [6, 7])

    played(story, BRIDGES)


@pytest.mark.parametrize("one_link", [False, True])
def test_the_x16_quartet_runs_on_a_box_with_four_such_cards_beside_narrower_ones(
    one_link: bool,
) -> None:
    async def story(world: World) -> None:
        claim, user = claiming("tp4", 4, one_link=one_link)
        await world.client("trainer").create(RESOURCE_CLAIM, claim, "default")
        await world.client("trainer").create(POD, user, "default")
        assert await runs_on(world, "tp4") == [1, 2, 3, 4]

    played(story, QUARTET)


def test_a_claim_without_a_link_has_its_cards_across_host_bridges() -> None:
    async def story(world: World) -> None:
        claim, user = claiming("tp4", 4)
        await world.client("trainer").create(RESOURCE_CLAIM, claim, "default")
        await world.client("trainer").create(POD, user, "default")
        assert await runs_on(world, "tp4") in ([0, 1, 2, 3], [4, 5, 6, 7])  # one NUMA node

    played(story, BRIDGES)


def test_a_pod_has_cards_of_different_widths_when_it_needs_more_than_there_are_alike() -> None:
    async def story(world: World) -> None:
        await world.client("trainer").create(POD, pod("six", 6), "default")
        assert await runs_on(world, "six") == [0, 1, 2, 3, 4, 5]
        assert await weight(world, "six") == 6

    played(story, QUARTET)
