"""Gangs that nobody had to call so: Jobs of ranks, and PodGroups. The real wiring, virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.kinds import (
    BID,
    CRD,
    GPU_LEASE,
    JOB,
    NODE,
    POD,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    Kind,
)
from bidplane.core.scheduling.groups import COSCHEDULING, KAI, VOLCANO, PodGroupKind
from bidplane.errors import ApiError
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.world import World

from .playing import played
from .test_parts_and_gangs_simulated import FLEET, nothing_leased, pod, until_phase


def ranks(count: int, *, gpus: int = 2, seconds: int = 20, **spec: Any) -> dict[str, Any]:
    one = pod("x", limits={"nvidia.com/gpu": str(gpus)})
    one["metadata"]["annotations"] |= {
        labels.SIMULATED_SECONDS: str(seconds),
        labels.POOL: "a100",
    }
    del one["metadata"]["name"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": count,
            "completions": count,
            "template": {"metadata": one["metadata"], "spec": one["spec"]},
            **spec,
        },
    }


async def pods(world: World) -> list[Any]:
    return list((await world.client("trainer").list(POD)).items)


async def until_all(world: World, count: int, *phases: str) -> list[Any]:
    async def so() -> bool:
        found = await pods(world)
        return len(found) == count and all(p["status"].get("phase") in phases for p in found)

    await world.until(so, within=300)
    return await pods(world)


def test_an_indexed_job_is_won_as_one_and_needs_no_annotation() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        # One node is taken: one rank would fit, two do not.
        small = {labels.POOL.replace("/", "__").replace("-", "_"): "a100"}
        holder = pod("holder", limits={"nvidia.com/gpu": "2"}, **small)
        await world.client("chat").create(POD, holder, "default")
        await until_phase(world, "Running", "holder", plane="chat")
        await plane.create(JOB, ranks(2), "default")
        await asyncio.sleep(10)
        assert [p["spec"].get("nodeName") for p in await pods(world)] == [None, None]
        (bid,) = (await plane.list(BID)).items
        assert (bid["spec"]["gpus"], bid["spec"]["blocks"]) == (2, 2)
        running = await until_all(world, 2, "Running")
        assert len({p["spec"]["nodeName"] for p in running}) == 2
        await until_all(world, 2, "Succeeded")
        await world.until(lambda: nothing_leased(world), within=60)
        assert not (await plane.list(BID)).items

    played(story, FLEET, "trainer", "chat")


@pytest.mark.parametrize(("server", "exchange"), [(2, 5), (6, 1), (12, 3), (20, 9), (30, 2)])
def test_a_gang_is_whole_whoever_dies(server: int, exchange: int) -> None:
    """Killed so many steps after the Job is there: while it bids, is won, is bound, runs."""

    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(JOB, ranks(2), "default")
        world.plan_kill("server", world.steps["server"] + server, down=0.3)
        world.plan_kill("exchange", world.steps["exchange"] + exchange, down=2.0)

        async def done() -> bool:
            try:
                found = await plane.get(JOB, "train", "default")
            except ApiError:
                return False  # the server is down
            return (found.get("status") or {}).get("succeeded") == 2

        await world.until(done, within=900)

        async def over() -> bool:
            with suppress(ApiError):
                return await nothing_leased(world)
            return False

        await world.until(over, within=120)
        assert world.kills_to_come == 0, "all of them happened"
        assert world.ledger is not None
        (wallet,) = world.ledger.wallets_named("trainer")
        rows = [lease for lease in world.ledger.leases_of(wallet.id) if lease.active_at]
        assert {row.parts for row in rows} == {(2, 2)}, "nothing but whole gangs was ever used"

    played(story, FLEET, "trainer", "chat")


def test_a_job_that_is_no_gang_starts_with_what_there_is() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        queue = ranks(3)
        queue["spec"] |= {"completionMode": "NonIndexed"}
        await plane.create(JOB, queue, "default")

        async def two_run() -> bool:
            phases = [p["status"].get("phase") for p in await pods(world)]
            return sorted(phases) == ["Pending", "Running", "Running"]

        await world.until(two_run, within=60)
        await until_all(world, 3, "Succeeded")

    played(story, FLEET, "trainer", "chat")


def test_a_gang_whose_node_dies_ends_and_comes_back_together() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        ignored = {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                }
            ]
        }
        await plane.create(JOB, ranks(2, gpus=1, seconds=40, podFailurePolicy=ignored), "default")
        before = {p["metadata"]["uid"] for p in await until_all(world, 2, "Running")}
        leases = (await world.client().list(GPU_LEASE)).items
        assert len({lease["spec"]["node"] for lease in leases}) == 2
        lost = leases[0]["spec"]["node"]
        await world.client().delete(RESOURCE_SLICE, f"{lost}-gpus")
        await world.client().delete(NODE, lost)

        async def others() -> bool:
            found = [p for p in await pods(world) if p["metadata"]["uid"] not in before]
            return len(found) == 2 and all(p["status"].get("phase") == "Running" for p in found)

        await world.until(others, within=120)
        leases = (await world.client().list(GPU_LEASE)).items
        assert lost not in {lease["spec"]["node"] for lease in leases}

        async def done() -> bool:
            found = await plane.get(JOB, "train", "default")
            return (found.get("status") or {}).get("succeeded") == 2

        await world.until(done, within=300)
        await world.until(lambda: nothing_leased(world), within=60)

    nodes = [NodeDeclaration(name=name, product="A100", gpus=1) for name in ("one", "two", "three")]
    played(story, Fleet(nodes=nodes, pools=[PoolDeclaration(product="A100", notice_seconds=5)]))


def defined(kind: Kind, *, subresource: bool) -> dict[str, Any]:
    """A PodGroup, as much of it as is read here."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version: dict[str, Any] = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": anything, "status": anything},
            }
        },
    }
    if subresource:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [version],
        },
    }


@pytest.mark.parametrize("source", [COSCHEDULING, VOLCANO, KAI], ids=lambda s: str(s.kind.group))
def test_a_pod_groups_least_members_are_won_together(source: PodGroupKind) -> None:
    """Of three pods two are the least, and there is room for two."""

    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(CRD, defined(source.kind, subresource=source is not VOLCANO))

        async def served() -> bool:
            found = await plane.get(CRD, f"podgroups.{source.kind.group}")
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        await world.until(served, within=30)
        marks = {labels.POOL: "a100", **dict.fromkeys(source.annotations[:1], "ranks")}
        for name in ("a", "b", "c"):
            member = pod(name, limits={"nvidia.com/gpu": "2"})
            member["metadata"]["annotations"] |= marks
            if source.label:
                member["metadata"]["labels"] = {source.label: "ranks"}
            await plane.create(POD, member, "default")
        await asyncio.sleep(5)
        for found in await pods(world):
            (scheduled,) = found["status"]["conditions"]
            assert scheduled["reason"] == "NoSuchPodGroup"
        group = {
            "apiVersion": source.kind.api_version,
            "kind": "PodGroup",
            "metadata": {"name": "ranks"},
            "spec": {"minMember": 2},
        }
        await plane.create(source.kind, group, "default")
        await until_phase(world, "Running", "a", "b")
        (bid,) = [
            b for b in (await plane.list(BID)).items if labels.GANG in b["metadata"]["labels"]
        ]
        assert bid["spec"]["blocks"] == 2

        async def told() -> bool:
            status = (await plane.get(source.kind, "ranks", "default")).get("status") or {}
            return status.get("running") == 2

        await world.until(told, within=30)
        await until_phase(world, "Succeeded", "a", "b", "c")
        await world.until(lambda: nothing_leased(world), within=60)

    played(story, FLEET, "trainer", "chat")


def test_a_gang_may_claim_its_gpus() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "pair"},
            "spec": {
                "spec": {
                    "devices": {
                        "requests": [
                            {
                                "name": "gpus",
                                "exactly": {
                                    "deviceClassName": "gpu.bidplane.dev",
                                    "count": 2,
                                    "selectors": [
                                        {
                                            "cel": {
                                                "expression": (
                                                    'device.attributes["gpu.bidplane.dev"]'
                                                    '.productName == "A100"'
                                                )
                                            }
                                        }
                                    ],
                                },
                            }
                        ]
                    }
                }
            },
        }
        await plane.create(RESOURCE_CLAIM_TEMPLATE, template, "default")
        job = ranks(2)
        spec = job["spec"]["template"]["spec"]
        spec["containers"][0]["resources"] = {"claims": [{"name": "mine"}]}
        spec["resourceClaims"] = [{"name": "mine", "resourceClaimTemplateName": "pair"}]
        await plane.create(JOB, job, "default")
        running = await until_all(world, 2, "Running")
        (bid,) = (await plane.list(BID)).items
        assert bid["spec"]["blocks"] == 2
        assert len({p["spec"]["nodeName"] for p in running}) == 2
        await until_all(world, 2, "Succeeded")
        await world.until(lambda: nothing_leased(world), within=60)

    played(story, FLEET, "trainer", "chat")
