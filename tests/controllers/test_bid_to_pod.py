"""From a pod to a bid, from a lease to a node, from a bound pod to the host, and back."""

import asyncio

import pytest

from bidplane.api import labels
from bidplane.api.kinds import (
    BID,
    CONFIG_MAP,
    GPU_LEASE,
    NAMESPACE,
    NODE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
)
from bidplane.errors import NotFound

SPACE = "agent-trainer"


def scheduled(pod):
    return next(c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")


def claimed(lease):
    return [c["type"] for c in lease["status"].get("conditions") or ()] == ["Claimed"]


def test_the_whole_way(stories):
    async def story(site):
        await site.create_pod(annotations={labels.MAX_PRICE: "2.10"})
        (bid,) = await site.all(site.host, BID)
        assert (bid["spec"]["gpus"], bid["spec"]["maxPrice"]) == (2, "2.10")
        await site.win()
        await site.settle()
        assert await site.names(site.plane, NODE) == ["lease-1"]
        assert await site.names(site.plane, RESOURCE_SLICE) == ["lease-1"]
        assert (await site.pod())["spec"]["nodeName"] == "lease-1"
        (copy,) = await site.all(site.host, POD)
        assert copy["spec"]["nodeName"] == "h100-a"
        assert await site.names(site.host, RESOURCE_CLAIM) == ["lease-1"]
        assert claimed(await site.lease())
        await site.lease_status("Active")
        await site.run_host_pod()
        assert (await site.pod())["status"]["phase"] == "Running"
        await site.run_host_pod("Succeeded")
        assert (await site.pod())["status"]["phase"] == "Succeeded"
        assert (await site.lease())["metadata"].get("deletionTimestamp"), "it is given back"
        await site.end_lease()
        await site.settle()
        for kind in (NODE, RESOURCE_SLICE, GPU_LEASE, BID):
            assert await site.names(site.plane, kind) == []

    stories(story)


def test_a_lease_whose_devices_are_not_free_yet_has_no_node(stories):
    async def story(site):
        await site.create_pod()
        await site.win()
        await site.lease_status("Pending", ready=False)
        await site.settle()
        await site.lease_status("Pending", ready=True)
        await site.settle()
        assert (await site.pod())["spec"]["nodeName"] == "lease-1"

    stories(story)


def test_a_lease_object_without_a_status_is_waited_for(stories):
    async def story(site):
        await site.create_pod()
        bid = (await site.all(site.host, BID))[0]
        lease_status, site.lease_status = site.lease_status, lambda *_, **__: asyncio.sleep(1)
        await site.win(bid)
        await site.settle()
        assert await site.names(site.plane, GPU_LEASE) == []
        await lease_status("Pending")
        await site.settle()
        assert (await site.pod())["spec"]["nodeName"] == "lease-1"

    stories(story)


def test_a_gate_or_a_long_name_keeps_no_other_pod_waiting(stories):
    async def story(site):
        await site.create_pod("gated", schedulingGates=[{"name": "example.com/quota"}])
        await site.create_pod("n" * 62 + ".n")
        await site.create_pod("good")
        bids = await site.all(site.plane, BID)
        owners = {bid["metadata"]["ownerReferences"][0]["name"] for bid in bids}
        assert owners == {"n" * 62 + ".n", "good"}

    stories(story)


def test_one_bid_that_is_refused_does_not_keep_the_others_waiting(stories):
    def admit(plane, operation, kind, new, old):
        return ["no"] if kind == BID and new["metadata"]["name"].startswith("bad") else []

    async def story(site):
        await site.create_pod("bad")
        await site.create_pod("good")
        (bid,) = await site.all(site.plane, BID)
        assert bid["metadata"]["name"].startswith("good")

    stories(story, admit=admit)


def test_a_pod_that_cannot_be_read_is_told_so_where_nobody_refused_it(stories):
    async def story(site):
        await site.create_pod("bad", gpus="2000")
        await site.create_pod("good")
        assert len(await site.all(site.plane, BID)) == 1
        assert scheduled(await site.pod("bad"))["reason"] == "BadAsk"

    stories(story, admit=None)


@pytest.mark.parametrize("phase", ["Draining", "Released"])
def test_no_host_pod_is_made_on_a_lease_that_ends(stories, phase):
    """Its devices may be another's by now."""

    async def story(site):
        await site.create_pod(volumes=[{"name": "v", "configMap": {"name": "late"}}])
        await site.win()
        await site.settle()
        assert await site.names(site.host, POD) == [], "it waits for its ConfigMap"
        await site.lease_status(phase, reclaimAt="2030-01-01T00:00:00Z")
        config = {"metadata": {"name": "late"}, "data": {}}
        await site.plane.create(CONFIG_MAP, config, "default")
        await site.settle(30)
        assert await site.names(site.host, POD) == []

    stories(story)


def test_only_a_lease_that_waits_for_it_is_claimed(stories):
    async def story(site):
        await site.create_pod()
        await site.win()
        await site.settle()
        status = {"phase": "Released", "conditions": None}
        await site.host.patch(GPU_LEASE, "lease-1", {"status": status}, SPACE, subresource="status")
        await site.settle()
        assert not claimed(await site.lease())

    stories(story)


@pytest.mark.parametrize("optional", [True, False])
def test_a_missing_config_stops_a_pod_unless_it_is_optional(stories, optional):
    async def story(site):
        volume = {"name": "v", "configMap": {"name": "none", "optional": optional}}
        await site.create_pod(volumes=[volume])
        await site.win()
        await site.settle()
        assert len(await site.names(site.host, POD)) == (1 if optional else 0)

    stories(story)


def test_a_bid_that_is_changed_is_changed_on_the_host(stories):
    async def story(site):
        bid = {
            "metadata": {"name": "mine"},
            "spec": {"gpus": 1, "maxPrice": "1.00", "pool": "h100"},
        }
        await site.plane.create(BID, bid, "default")
        await site.settle()
        change = {"spec": {"maxPrice": "3.00", "pool": None}}
        await site.plane.patch(BID, "mine", change, "default")
        await site.settle()
        (copy,) = await site.all(site.host, BID)
        original = await site.plane.get(BID, "mine", "default")
        assert copy["spec"] == original["spec"]
        assert "pool" not in copy["spec"]

    stories(story)


def test_a_bid_that_ended_before_its_pod_was_bound_is_made_anew(stories):
    async def story(site):
        await site.create_pod()
        (first,) = await site.all(site.host, BID)
        await site.bid_status(first["metadata"]["name"], "Ended")
        await site.settle()
        (second,) = await site.all(site.host, BID)
        assert second["metadata"]["uid"] != first["metadata"]["uid"]

    stories(story)


def test_what_was_written_while_the_controllers_were_away_is_found(stories):
    async def story(site):
        await site.pause()
        container = {"name": "main", "image": "train:1"}
        container["resources"] = {"limits": {labels.GPU_RESOURCE: "1"}}
        pod = {"metadata": {"name": "away"}, "spec": {"containers": [container]}}
        await site.plane.create(POD, pod, "default")
        await site.resume()
        assert len(await site.all(site.host, BID)) == 1

    stories(story)


@pytest.mark.parametrize("how", ["gone", "another took its name"])
def test_a_host_pod_whose_original_is_gone_is_removed(stories, how):
    async def story(site):
        await site.running()
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        if how != "gone":
            await site.create_pod()
        await site.settle()
        (copy,) = await site.all(site.host, POD)
        assert copy["metadata"].get("deletionTimestamp")

    stories(story)


def test_a_host_pod_that_was_lost_fails_its_original(stories):
    async def story(site):
        await site.running()
        await site.remove_host_pod()
        await site.settle()
        status = (await site.pod())["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "HostPodLost")

    stories(story)


def test_a_lease_is_shown_in_the_namespace_it_is_for_when_its_bid_is_gone(stories):
    """It was looked for in the bid, and the mirror landed in `default`."""

    async def story(site):
        await site.plane.create(NAMESPACE, {"metadata": {"name": "team"}})
        device = {"node": "h100-a", "driver": "d", "pool": "h100-a", "name": "gpu-0"}
        lease = {
            "metadata": {"name": "lease-7", "labels": {labels.AGENT: "trainer"}},
            "spec": {
                "agent": "trainer",
                "bid": {"namespace": SPACE, "name": "gone", "uid": "gone"},
                "pool": "h100",
                "node": "h100-a",
                "devices": [device],
                "maxPrice": "1",
                "planeNamespace": "team",
                "origin": "order",  # else the scheduler gives back what no bid wants
            },
        }
        await site.host.create(GPU_LEASE, lease, SPACE)
        await site.lease_status("Pending", name="lease-7")
        await site.settle(0.1)
        (mirror,) = await site.all(site.plane, GPU_LEASE)
        assert mirror["metadata"]["namespace"] == "team"

    stories(story)


def test_a_lease_made_up_by_the_agent_is_removed(stories):
    async def story(site):
        fake = {
            "metadata": {"name": "lease-9"},
            "spec": {
                "agent": "trainer",
                "bid": {"namespace": "x", "name": "x", "uid": "x"},
                "pool": "h100",
                "node": "h100-a",
                "devices": [],
                "maxPrice": "1",
            },
        }
        await site.plane.create(GPU_LEASE, fake, "default")
        await site.plane.create(NODE, {"metadata": {"name": "mine"}, "spec": {}})
        await site.settle()
        assert await site.names(site.plane, GPU_LEASE) == []
        assert await site.names(site.plane, NODE) == []
        with pytest.raises(NotFound):
            await site.host.get(GPU_LEASE, "lease-9", SPACE)

    stories(story)


def test_what_mostly_passes_within_a_round_is_said_only_when_it_lasts(stories):
    async def story(site):
        await site.create_pod()
        # The bid stands, and may win any moment.
        assert not (await site.pod())["status"].get("conditions")
        await site.settle(8)
        assert not (await site.pod())["status"].get("conditions")
        await site.settle(4)
        assert scheduled(await site.pod())["reason"] == "Bidding"

    stories(story)
