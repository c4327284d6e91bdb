"""
Pods without GPUs, through the whole wiring: on CPU that an owner offers, beside a lease while it is
paid for, and told what to do where there is neither. CPU and memory are what the machine has.
"""

from __future__ import annotations

from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import GPU_LEASE, NODE, POD
from bidplane.node.fleet import CpuOffer, Fleet, NodeDeclaration
from bidplane.sim.world import World
from bidplane.wire.quantity import parse

from .playing import played, said

BOX = NodeDeclaration(name="box", product="H100", gpus=4, cpu="32", host_memory="256Gi")
PLAIN = Fleet(nodes=[BOX])
OFFERING = Fleet(
    nodes=[
        NodeDeclaration(
            name="box",
            product="H100",
            gpus=4,
            cpu="32",
            host_memory="256Gi",
            offers=CpuOffer(cpu="4", memory="8Gi"),
        )
    ]
)


def pod(
    name: str,
    *,
    gpus: int = 0,
    cpu: str = "1",
    memory: str = "1Gi",
    seconds: int = 600,
    **spec: Any,
) -> dict[str, Any]:
    resources: dict[str, Any] = {"requests": {"cpu": cpu, "memory": memory}}
    if gpus:
        resources["limits"] = {labels.GPU_RESOURCE: str(gpus)}
    notes = {labels.SIMULATED_SECONDS: str(seconds)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "x", "resources": resources}],
            **spec,
        },
    }


async def runs(world: World, name: str, agent: str = "trainer") -> Any:
    async def running() -> bool:
        found = await world.client(agent).get(POD, name, "default")
        return bool((found.get("status") or {}).get("phase") == "Running")

    await world.until(running, within=120)
    return await world.client(agent).get(POD, name, "default")


async def over(world: World, name: str, agent: str = "trainer") -> None:
    async def ended() -> bool:
        nodes = (await world.client(agent).list(NODE)).items
        return all(node["metadata"]["name"] != name for node in nodes)

    await world.until(ended, within=300)


def test_a_pod_without_a_gpu_is_told_both_ways_to_run() -> None:
    async def story(world: World) -> None:
        await world.client("trainer").create(POD, pod("web"), "default")
        words = await said(world, "web", "NoNodeWithoutGpu")
        assert "beside a lease" in words
        assert "offers: {cpu: 4, memory: 8Gi}" in words

    played(story, PLAIN)


def test_it_runs_beside_a_lease_and_leaves_with_it() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(POD, pod("train", gpus=1, cpu="2", seconds=60), "default")
        await plane.create(POD, pod("web"), "default")
        train, web = await runs(world, "train"), await runs(world, "web")
        lease = train["spec"]["nodeName"]
        assert web["spec"]["nodeName"] == lease
        # A quarter of the machine, as it has a quarter of its GPUs.
        room = (await plane.get(NODE, lease))["status"]["allocatable"]
        assert (room["cpu"], room["memory"]) == ("8", "64Gi")
        # What asks for more than is left beside the first waits, and says for what.
        await plane.create(POD, pod("large", cpu="6"), "default")
        assert "Insufficient cpu" in await said(world, "large", "Unschedulable")
        # The lease ends with the pod that has its GPU; the other does not keep it.
        await over(world, lease)

        async def given_back() -> bool:
            return not (await world.client().list(GPU_LEASE)).items

        await world.until(given_back, within=60)

    played(story, PLAIN)


def test_it_runs_on_cpu_that_an_owner_offers_and_agents_share_that() -> None:
    async def story(world: World) -> None:
        await world.client("trainer").create(POD, pod("web", cpu="3"), "default")
        web = await runs(world, "web")
        assert web["spec"]["nodeName"] == "offered-box"
        # Another agent has what is left of it, and no more.
        chat = world.client("chat")
        await chat.create(POD, pod("small", cpu="1"), "default")
        await runs(world, "small", "chat")
        await chat.create(POD, pod("large", cpu="2"), "default")

        async def waits() -> bool:
            found = await chat.get(POD, "large", "default")
            status = found.get("status") or {}
            return "Insufficient cpu" in str(status) or status.get("reason") == "OutOfcpu"

        await world.until(waits, within=60)
        there = (await world.client().list(POD, labels=f"{labels.OFFERED}=box")).items
        requests = [one["spec"]["containers"][0]["resources"]["requests"]["cpu"] for one in there]
        assert sum(map(parse, requests)) <= 4
        # It costs nothing, and is no lease.
        assert not (await world.client().list(GPU_LEASE)).items

    played(story, OFFERING, "trainer", "chat")


def test_a_pod_on_an_offer_that_is_withdrawn_has_its_grace_period() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        web = pod("web", terminationGracePeriodSeconds=20)
        web["metadata"]["annotations"][labels.SIMULATED_SHUTDOWN_SECONDS] = "15"
        await plane.create(POD, web, "default")
        await runs(world, "web")
        withdrawn = {labels.OFFERS_CPU: None, labels.OFFERS_MEMORY: None}
        await world.client().patch(NODE, "box", {"metadata": {"annotations": withdrawn}})
        await over(world, "offered-box")
        at = world.clock.now()
        # The node is gone, and the pod still has the time that it asked for.
        ending = await plane.get(POD, "web", "default")
        assert ending["metadata"]["deletionGracePeriodSeconds"] == 20

        async def gone() -> bool:
            return not (await plane.list(POD, "default")).items

        await world.until(gone, within=60)
        assert 10 <= world.clock.now() - at <= 25

    played(story, OFFERING)


def test_no_machine_has_five_thousand_cpus_and_the_bid_says_so() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(POD, pod("huge", gpus=1, cpu="5000", memory="90Ti"), "default")
        words = await said(world, "huge", "NoMachineFits")
        assert "cpu 5k, memory 90Ti" in words
        assert "cpu 8" in words  # that is what one GPU comes with
        # Asked for as much as its GPUs come with, it runs.
        await plane.create(POD, pod("large", gpus=3, cpu="24"), "default")
        await runs(world, "large")

    played(story, PLAIN)


def test_a_node_selector_leads_to_the_machine_that_matches() -> None:
    fleet = Fleet(
        nodes=[NodeDeclaration(name=name, product="H100", gpus=2) for name in ("left", "right")]
    )

    async def story(world: World) -> None:
        plane, here = world.client("trainer"), {"kubernetes.io/hostname": "right"}
        for name in ("one", "two"):
            await plane.create(POD, pod(name, gpus=1, nodeSelector=here), "default")
            lease = (await runs(world, name))["spec"]["nodeName"]
            found = await world.client().get(GPU_LEASE, lease, "agent-trainer")
            assert found["spec"]["node"] == "right"
        nowhere = {"kubernetes.io/hostname": "up"}
        await plane.create(POD, pod("three", gpus=1, nodeSelector=nowhere), "default")
        assert "kubernetes.io/hostname" in await said(world, "three", "NoMachineFits")

    played(story, fleet)
