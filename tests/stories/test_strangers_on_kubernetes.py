"""
A real cluster whose own scheduler gives GPUs to pods of others: what they have is not sold, they
get nothing that is leased, and their pods run on our nodes as any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.kinds import (
    AGENT,
    DEVICE_CLASS,
    GPU_LEASE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
)
from bidplane.kube.client import KubeClient
from bidplane.ledger import verify
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.testing.cluster import Cluster
from bidplane.testing.rig import Binaries

from .conftest import pod
from .test_bid_to_pod_on_kubernetes import end, has_wallet, installed, phase, until

pytestmark = [pytest.mark.slow, pytest.mark.kube]

FLEET = Fleet(
    nodes=[NodeDeclaration(name="shared", product="Story-17", gpus=4)],
    pools=[PoolDeclaration(product="Story-17", floor_price="0.20", notice_seconds=3)],
)
CLASS = {
    "apiVersion": DEVICE_CLASS.api_version,
    "kind": DEVICE_CLASS.kind,
    "metadata": {"name": "any-gpu"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.bidplane.dev"'}}]},
}


@pytest.fixture(scope="module")
def scheduling(kube_binaries: Binaries) -> Iterator[Cluster]:
    with Cluster(kube_binaries, scheduler=True) as running:
        yield running


def template(name: str, count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": "any-gpu", "count": count}
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATE.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATE.kind,
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}},
    }


def claimer(name: str, of: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "cards"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "resourceClaims": [{"name": "cards", "resourceClaimTemplateName": of}],
        },
    }


def says(*words: str) -> Any:
    def said(pod: Any) -> bool:
        conditions = str((pod.get("status") or {}).get("conditions"))
        return all(word in conditions for word in words)

    return said


async def devices_of(host: KubeClient, namespace: str) -> list[set[str]]:
    """By claim of a namespace, what it has."""
    return [
        {result["device"] for result in claim["status"]["allocation"]["devices"]["results"]}
        for claim in (await host.list(RESOURCE_CLAIM, namespace)).items
        if (claim.get("status") or {}).get("allocation")
    ]


async def story(cluster: Any, folder: Path) -> None:
    async with installed(cluster, folder, FLEET, beats=True) as (host, planes):
        spec = {"owner": "o", "refill": "100", "maxPrice": "5.00"}
        agent = {"metadata": {"name": "buyer"}, "spec": spec}
        await host.create(AGENT, {"apiVersion": AGENT.api_version, "kind": "Agent", **agent})
        await until(host, AGENT, "buyer", has_wallet)
        await host.create(DEVICE_CLASS, CLASS)
        await host.create(RESOURCE_CLAIM_TEMPLATE, template("two", 2), "default")

        # A stranger's claim, allocated and bound by kube-scheduler, runs on our node.
        await host.create(POD, claimer("first", "two"), "default")
        running = await until(host, POD, "first", phase("Running"), "default")
        (status,) = running["status"]["containerStatuses"]
        (allocated,) = status["allocatedResourcesStatus"]
        assert allocated["name"] == "claim:cards"
        (theirs,) = await devices_of(host, "default")
        assert {one["resourceID"] for one in allocated["resources"]} == {
            f"shared/{device}" for device in theirs
        }

        # What it has is not sold, and the rest is.
        buyer = planes.client("buyer")
        await buyer.create(POD, pod("three", gpus=3), "default")
        await until(buyer, POD, "three", says("2 of 4 Story-17 are held by the claim default/"))
        await buyer.delete(POD, "three", "default", grace_seconds=0)
        await buyer.create(POD, pod("pair", gpus=2), "default")
        await until(buyer, POD, "pair", phase("Running"))
        (ours,) = await devices_of(host, "agent-buyer")
        assert ours == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"} - theirs

        # A stranger gets nothing of it: neither by a claim nor by a number.
        await host.create(POD, claimer("second", "two"), "default")
        await until(
            host, POD, "second", says("Unschedulable", "cannot allocate all claims"), "default"
        )
        await host.create(POD, pod("number"), "default")
        await until(host, POD, "number", says("Unschedulable", "nvidia.com/gpu"), "default")
        for name in ("second", "number", "first"):
            await host.delete(POD, name, "default", grace_seconds=0)

        # Of a node where a pod has a number of cards, none is sold until it has ended.
        await host.create(POD, {**pod("plugin", gpus=1), **_bound("plugin")}, "default")
        await buyer.create(POD, pod("one", gpus=1), "default")
        words = "where pod default/plugin has 1 nvidia.com/gpu and nobody says which cards"
        await until(buyer, POD, "one", says(words))
        await host.delete(POD, "plugin", "default", grace_seconds=0)
        await until(buyer, POD, "one", phase("Running"))

        await end(host, "buyer")
        assert not (await host.list(GPU_LEASE)).items
        await host.delete(DEVICE_CLASS, "any-gpu")
    report = verify(folder / "ledger.db")
    assert report.is_sound, report.problem


def _bound(name: str) -> dict[str, Any]:
    """A pod that somebody bound, as another scheduler does."""
    made: dict[str, Any] = pod(name, gpus=1)
    return {"spec": {**made["spec"], "nodeName": "shared"}}


def test_gpus_of_others_are_not_sold_and_leased_ones_not_given_away(
    scheduling: Cluster, tmp_path: Path
) -> None:
    asyncio.run(story(scheduling, tmp_path))
