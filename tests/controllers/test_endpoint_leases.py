"""A stopped service keeps its lease by a Bid of its Endpoint, and gives it back by its deletion."""

from __future__ import annotations

import pytest

from bidplane.api import labels
from bidplane.api.kinds import BID, DEPLOYMENT, ENDPOINT, GPU_LEASE, POD
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.hosting.translation import host_name
from bidplane.errors import ApiError

from .conftest import SPACE
from .test_endpoints import copy, create_service, endpoint, replicas, run_pod

LADDER = {"keepLeaseSeconds": 600}


async def demand(site, number, *, awake, keep=False):
    wish = {"number": number, "awake": awake, "keepLease": keep, "reason": "Request"}
    name = host_name("default", "llm")
    await site.host.patch(ENDPOINT, name, {"status": {"demand": wish}}, SPACE, subresource="status")
    await site.settle()


async def woken(site, *, lease="lease-1"):
    """A service that keeps its lease, with a pod on it."""
    await create_service(site)
    await site.plane.create(ENDPOINT, endpoint(ladder=LADDER), "default")
    await site.settle()
    await demand(site, 2, awake=True)
    await run_pod(site, lease=lease)
    assert (await copy(site))["status"]["phase"] == "Ready"


async def stop(site, number, *, keep):
    await demand(site, number, awake=False, keep=keep)
    assert await replicas(site) == 0
    await site.remove_host_pod()
    await site.settle(5)


async def released(site, name):
    return bool((await site.lease(name))["metadata"].get("deletionTimestamp"))


def test_a_kept_lease_outlives_the_pod_and_serves_the_next_one(stories):
    async def story(site):
        await woken(site)
        (bid,) = await site.all(site.plane, BID)
        assert (bid["metadata"]["name"], bid["spec"]["gpus"]) == ("endpoint-llm", 2)
        weighed = {"spec": {"weight": 2 * GPU_WEIGHT, "gpuWeight": GPU_WEIGHT}}
        await site.host.patch(GPU_LEASE, "lease-1", weighed, SPACE)
        await site.lease_status("Active", price="1.00")
        await site.settle()
        holding = (await copy(site))["status"]["holding"]
        assert (holding["leases"], holding["keepsLease"], holding["paidPerHour"]) == (
            ["lease-1"],
            True,
            "2.00",
        )
        for life in (1, 2):
            await stop(site, 2 * life + 1, keep=True)
            assert not await released(site, "lease-1")
            status = (await copy(site))["status"]
            assert (status["phase"], status["holding"]["keepsLease"]) == ("Asleep", True)
            await demand(site, 2 * life + 2, awake=True)
            (pod,) = await site.all(site.plane, POD)
            assert pod["spec"]["nodeName"] == "lease-1"
            assert len(await site.all(site.plane, BID)) == 1
        await stop(site, 7, keep=False)
        assert not await site.all(site.plane, BID)
        assert await released(site, "lease-1")

    stories(story)


def test_stopped_and_then_released(stories):
    async def story(site):
        await woken(site)
        await stop(site, 3, keep=True)
        await demand(site, 4, awake=False)
        await site.settle(5)
        assert await released(site, "lease-1")
        await site.end_lease("lease-1")
        await site.settle()
        assert not (await copy(site))["status"]["holding"]["keepsLease"]
        assert not await site.all(site.plane, GPU_LEASE)

    stories(story)


def test_pods_that_bid_for_themselves_get_no_second_lease(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(), "default")
        await site.settle()
        await demand(site, 2, awake=True)
        await run_pod(site, lease="lease-1")
        change = {"spec": {"ladder": LADDER}}
        await site.plane.patch(ENDPOINT, "llm", change, "default")
        await site.settle()
        assert "endpoint-llm" not in {
            b["metadata"]["name"] for b in await site.all(site.plane, BID)
        }
        assert not (await copy(site))["status"]["holding"]["keepsLease"]
        await stop(site, 3, keep=True)
        assert await released(site, "lease-1")

    stories(story)


def test_without_the_rung_the_pods_bid_for_themselves_again(stories):
    async def story(site):
        await woken(site)
        await stop(site, 3, keep=False)
        await site.end_lease("lease-1")
        await site.plane.patch(ENDPOINT, "llm", {"spec": {"ladder": None}}, "default")
        await site.settle()
        await demand(site, 4, awake=True)
        template = (await site.plane.get(DEPLOYMENT, "llm", "default"))["spec"]["template"]
        assert labels.BID_NAME not in template["metadata"]["annotations"]
        assert await replicas(site) == 1
        (bid,) = await site.all(site.plane, BID)
        assert bid["metadata"]["labels"][labels.POD_UID]

    stories(story)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({"ladder": {"keepLeaseSeconds": -1}}, "keepLeaseSeconds"),
        ({"ladder": {"sleep": {"kind": "sglang"}}}, "kind"),
        ({"ladder": {"sleep": {"kind": "command"}}}, "wakeCommand"),
        ({"ladder": {"sleep": {"kind": "vllm", "level": 3}}}, "level"),
        ({"ladder": {"auto": {"leastSeconds": 60, "mostSeconds": 30}}}, "mostSeconds"),
        ({"ladder": {"auto": {"waitPrice": "a lot"}}}, "waitPrice"),
        ({"idle": {"queue": {"kind": "json"}}}, "path"),
        ({"idle": {"queue": {"kind": "command"}}}, "command"),
        ({"idle": {"gpuPercent": 101}}, "gpuPercent"),
    ],
)
def test_bad_ladders_are_refused_with_their_field(stories, spec, part):
    async def story(site):
        with pytest.raises(ApiError) as refusal:
            await site.plane.create(ENDPOINT, endpoint(**spec), "default")
        assert refusal.value.code in (400, 422)
        assert part in str(refusal.value)

    stories(story)
