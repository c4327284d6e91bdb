"""
Claims for a GPU and a NIC, which nobody sells: the pod runs where there is one free, waits with a
word where there is none, and a win that misses it costs nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bidplane.api.kinds import (
    AGENT,
    DEVICE_CLASS,
    GPU_LEASE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
)
from bidplane.controllers.lease.companions import CompanionDeviceClaims
from bidplane.ledger.records import Lease, wallet_of
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.sim.world import World

from .playing import played, said
from .test_claims_simulated import claim, phase, pod

NIC_DRIVER = "nic.example.com"
NIC_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": NIC_DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{NIC_DRIVER}"'}}]},
}
# The machine with no NIC is the tighter one: without a NIC in the claim, it is where it goes.
RACK = Fleet(
    nodes=[
        NodeDeclaration(name="plain", product="H100", gpus=2),
        NodeDeclaration(name="wired", product="H100", gpus=4),
    ]
)


def nics(node: str, count: int) -> dict[str, Any]:
    """As another driver publishes them on the host."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-nics"},
        "spec": {
            "driver": NIC_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{at}"} for at in range(count)],  # a name GPUs have, too
        },
    }


def gpu_and_nic(name: str) -> dict[str, Any]:
    made = claim(name, 1)
    nic = {"name": "nic", "exactly": {"deviceClassName": NIC_DRIVER, "count": 1}}
    made["spec"]["devices"]["requests"].append(nic)
    return made


def on_the_host(name: str, node: str, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Somebody else's claim there, as kube-scheduler would have allocated it; and its status."""
    made = gpu_and_nic(name)
    made["spec"]["devices"] = {"requests": made["spec"]["devices"]["requests"][1:]}
    result = {"request": "nic", "driver": NIC_DRIVER, "pool": node, "device": device}
    return made, {"allocation": {"devices": {"results": [result]}}}


async def sales(world: World) -> list[Lease]:
    """Of all that was ever sold to the agent."""
    agent = await world.client().get(AGENT, "trainer")
    assert world.ledger is not None
    return world.ledger.leases_of(wallet_of(agent["metadata"]["uid"]))


async def take_nic(world: World, name: str, node: str, device: str) -> None:
    made, status = on_the_host(name, node, device)
    host = world.client()
    await host.create(RESOURCE_CLAIM, {**made, "status": status}, "default", with_status=True)


def test_a_claim_with_a_nic_runs_where_there_is_one_though_another_machine_is_tighter() -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        await host.create(RESOURCE_SLICE, nics("wired", 2))
        for one in (host, plane):
            await one.create(DEVICE_CLASS, NIC_CLASS)
        await plane.create(RESOURCE_CLAIM, gpu_and_nic("both"), "default")
        await plane.create(POD, pod("both", resourceClaimName="both"), "default")

        async def runs() -> bool:
            return await phase(world, "both") == "Running"

        await world.until(runs, within=120)
        (lease,) = (await host.list(GPU_LEASE)).items
        assert lease["spec"]["node"] == "wired"
        assert len(lease["spec"]["devices"]) == 1, "a NIC is not sold"
        claimed = await plane.get(RESOURCE_CLAIM, "both", "default")
        results = claimed["status"]["allocation"]["devices"]["results"]
        drivers = {one["request"]: one["driver"] for one in results}
        assert drivers == {"gpus": "gpu.bidplane.dev", "nic": NIC_DRIVER}
        # What runs has both, on the host, and nobody else can claim that NIC there.
        (running,) = [p for p in (await host.list(POD)).items if p["spec"]["nodeName"] == "wired"]
        held = {}
        for one in running["spec"]["resourceClaims"]:
            namespace = running["metadata"]["namespace"]
            found = await host.get(RESOURCE_CLAIM, one["resourceClaimName"], namespace)
            held[one["name"]] = found["status"]["allocation"]["devices"]["results"]
        assert {name: [one["driver"] for one in some] for name, some in held.items()} == {
            "gpus": ["gpu.bidplane.dev"],
            "beside": [NIC_DRIVER],
        }
        assert running["spec"]["containers"][0]["resources"]["claims"] == [
            {"name": "gpus"},
            {"name": "beside"},
        ]
        # One who needs no NIC still goes where it is tighter.
        await plane.create(RESOURCE_CLAIM, claim("one", 1), "default")
        await plane.create(POD, pod("one", resourceClaimName="one"), "default")

        async def both() -> bool:
            return await phase(world, "one") == "Running"

        await world.until(both, within=20)
        nodes = {one["spec"]["node"] for one in (await host.list(GPU_LEASE)).items}
        assert nodes == {"plain", "wired"}

        async def given_back() -> bool:
            left = [c["metadata"]["name"] for c in (await host.list(RESOURCE_CLAIM)).items]
            return not any(name.endswith("-beside") for name in left)

        await world.until(given_back, within=300)

    played(story, RACK)


def test_of_two_who_want_the_last_nic_one_waits_and_is_told_then_runs() -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        await host.create(RESOURCE_SLICE, nics("wired", 1))
        for one in (host, plane):
            await one.create(DEVICE_CLASS, NIC_CLASS)
        names = ("first", "second")
        for name in names:  # in one round: both are sent where the NIC is free
            await plane.create(RESOURCE_CLAIM, gpu_and_nic(name), "default")
            await plane.create(POD, pod(name, resourceClaimName=name), "default")

        async def one_waits() -> bool:
            found = sorted([await phase(world, name) for name in names])
            return found == ["Pending", "Running"]

        await world.until(one_waits, within=120)
        (late,) = [name for name in names if await phase(world, name) == "Pending"]
        message = await said(world, late, "DeviceTaken")
        assert "nic.example.com free now" in message, message
        sold = len(await sales(world))

        async def served() -> bool:
            return await phase(world, late) == "Running"

        await world.until(served, within=300)  # when the first has ended
        void = [one for one in await sales(world) if one.reason == "InventoryChanged"]
        assert len(void) <= 1, "it was not sent there again while the NIC was taken"
        assert all(one.charged == 0 for one in void)
        assert len(await sales(world)) == sold + 1

    played(story, RACK)


def test_a_nic_that_was_taken_since_voids_the_win_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        await host.create(RESOURCE_SLICE, nics("wired", 1))
        for one in (host, plane):
            await one.create(DEVICE_CLASS, NIC_CLASS)
        # Who sells does not hear of it before the win: the claim comes in that very moment.
        original = CompanionDeviceClaims.ensure_claim
        taken = 0

        async def late(self: CompanionDeviceClaims, lease: Any) -> Any:
            nonlocal taken
            if not taken:
                taken += 1
                await take_nic(world, "theirs", "wired", "gpu-0")
            return await original(self, lease)

        monkeypatch.setattr(CompanionDeviceClaims, "ensure_claim", late)
        await plane.create(RESOURCE_CLAIM, gpu_and_nic("both"), "default")
        await plane.create(POD, pod("both", resourceClaimName="both"), "default")
        message = await said(world, "both", "DeviceTaken")
        assert "nic.example.com" in message
        (void,) = await sales(world)
        assert (void.reason, void.charged) == ("InventoryChanged", 0)
        await asyncio.sleep(120)
        assert len(await sales(world)) == 1, "it is not sold there again"
        assert (await host.list(GPU_LEASE)).items == []
        assert await phase(world, "both") == "Pending"
        # Given back there, the pod has it.
        await host.delete(RESOURCE_CLAIM, "theirs", "default")

        async def runs() -> bool:
            return await phase(world, "both") == "Running"

        await world.until(runs, within=60)

    played(story, RACK)


def test_a_device_that_nobody_has_is_refused_by_name() -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        await plane.create(RESOURCE_CLAIM, gpu_and_nic("both"), "default")
        await plane.create(POD, pod("both", resourceClaimName="both"), "default")
        assert "nic.example.com" in await said(world, "both", "BadClaim")  # no such class
        await plane.create(DEVICE_CLASS, NIC_CLASS)
        message = await said(world, "both", "NoSuchClass")
        assert "the host has no DeviceClass nic.example.com" in message, message
        await host.create(DEVICE_CLASS, NIC_CLASS)
        message = await said(world, "both", "NoSuchDevice")
        assert "no machine with such GPUs has nic.example.com" in message, message

    played(story, RACK)


@pytest.mark.parametrize("step", range(2, 44, 6))
def test_whenever_the_server_is_killed_the_nic_is_held_once_and_given_back(step: int) -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        await host.create(RESOURCE_SLICE, nics("wired", 1))
        for one in (host, plane):
            await one.create(DEVICE_CLASS, NIC_CLASS)
        world.plan_kill("server", world.steps["server"] + step, down=2.0)
        await plane.create(RESOURCE_CLAIM, gpu_and_nic("both"), "default")
        await plane.create(POD, pod("both", resourceClaimName="both"), "default")

        async def held() -> int:
            found = (await host.list(RESOURCE_CLAIM)).items
            return sum(one["metadata"]["name"].endswith("-beside") for one in found)

        async def runs() -> bool:
            assert await held() <= 1
            return await phase(world, "both") == "Running"

        await world.until(runs, within=200)
        assert not world.kills_to_come
        assert await held() == 1

        async def over() -> bool:
            return await phase(world, "both") == "Succeeded" and not await held()

        await world.until(over, within=400)

    played(story, RACK)
