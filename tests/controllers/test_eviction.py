"""An outbid lease ends on time, whatever its pod does, and the pod comes back."""

import asyncio

import pytest

from bidplane.api import labels
from bidplane.api.kinds import BID, GPU_LEASE, NODE, POD, POD_TEMPLATE
from bidplane.api.times import rfc3339
from bidplane.core.leases import requeue
from bidplane.plane.call import Call, User
from bidplane.plane.verbs.delete import DeleteOptions, delete

from .conftest import AGENT_NAME


def test_a_notice_taints_the_node_and_ends_the_pod_within_it(stories):
    async def story(site):
        await site.running(grace=600)
        await site.notice(30)
        (node,) = await site.all(site.plane, NODE)
        assert node["spec"]["taints"][0]["key"] == labels.RECLAIM_TAINT
        assert 25 <= site.seconds_until(await site.pod()) <= 30
        (copy,) = await site.all(site.host, POD)
        assert 25 <= site.seconds_until(copy) <= 31

    stories(story)


async def leave(site):
    """The host pod ends, the lease is given back and released."""
    await site.run_host_pod("Failed")
    await site.remove_host_pod()
    await site.settle()
    await site.end_lease()
    await site.settle()


def test_an_evicted_pod_comes_back_and_bids_again(stories):
    async def story(site):
        await site.running(annotations={labels.MAX_PRICE: "2.10"})
        first = await site.pod()
        await site.notice(30)
        await leave(site)
        successor = await site.pod()
        assert successor["metadata"]["uid"] != first["metadata"]["uid"]
        assert requeue.evictions(successor) == 1
        (bid,) = await site.all(site.host, BID)
        assert bid["spec"]["maxPrice"] == "2.10"
        assert await site.names(site.plane, POD_TEMPLATE) == []
        assert await site.names(site.plane, NODE) == []

    stories(story)


@pytest.mark.parametrize("value", ["many", "-1", "", "9" * 5000])
def test_no_annotation_holds_a_pod_on_its_gpus(stories, value):
    async def story(site):
        await site.running(annotations={labels.EVICTIONS: value})
        await site.notice(30)
        assert (await site.pod())["metadata"].get("deletionTimestamp")

    stories(story)


def test_a_pod_its_agent_deletes_with_much_grace_ends_with_the_notice_all_the_same(stories):
    """Else an agent keeps the GPUs, free of rent, for as long as it likes to call its grace."""

    async def story(site):
        await site.running(grace=36_000)
        await site.plane.delete(POD, "train", "default")
        await site.settle()
        await site.notice(30)
        assert site.seconds_until(await site.pod()) <= 30
        (copy,) = await site.all(site.host, POD)
        assert site.seconds_until(copy) <= 31
        assert await site.names(site.plane, POD_TEMPLATE) == [], "its agent does not want it back"

    stories(story)


@pytest.mark.parametrize("first", ["deleted by force", "notice"])
def test_a_pod_deleted_by_force_leaves_its_gpus_in_time(stories, first):
    async def story(site):
        await site.running(grace=36_000)
        if first == "notice":
            await site.notice(30)
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        await site.settle()
        if first != "notice":
            (copy,) = await site.all(site.host, POD)
            assert site.seconds_until(copy) > 1000, "nobody needs the GPUs yet"
            await site.notice(30)
        (copy,) = await site.all(site.host, POD)
        assert site.seconds_until(copy) <= 31

    stories(story)


def test_a_pod_deleted_by_force_while_the_controllers_were_away_leaves_in_time(stories):
    async def story(site):
        await site.running(grace=36_000)
        await site.pause()
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        until = rfc3339(site.clock.now() + 30)
        await site.lease_status("Draining", reason="Outbid", reclaimAt=until)
        await site.resume()
        (copy,) = await site.all(site.host, POD)
        assert site.seconds_until(copy) <= 31

    stories(story)


def test_grace_that_its_agent_shortens_is_shortened_on_the_host(stories):
    async def story(site):
        await site.running(grace=600)
        await site.plane.delete(POD, "train", "default")
        await site.settle()
        await site.plane.delete(POD, "train", "default", grace_seconds=5)
        await site.settle()
        (copy,) = await site.all(site.host, POD)
        assert site.seconds_until(copy) <= 5

    stories(story)


def test_a_pod_that_was_bound_while_its_lease_ended_is_not_lost(stories):
    """Won, and not claimed in time: the lease goes just as the pod is bound to it."""

    async def story(site):
        volume = {"name": "v", "configMap": {"name": "none"}}
        await site.create_pod(volumes=[volume])  # bound, and waits for its ConfigMap
        await site.win()
        await site.settle()
        bound = await site.pod()
        assert bound["spec"]["nodeName"] == "lease-1"
        await site.end_lease()
        await site.settle()
        successor = await site.pod()
        assert successor is not None
        assert not successor["spec"].get("nodeName")
        assert len(await site.all(site.host, BID)) == 1

    stories(story)


def test_a_pod_bound_to_a_node_that_is_gone_already_is_not_stuck(stories):
    async def story(site):
        await site.create_pod()
        pod = await site.pod()
        await site.plane.bind("default", "train", "lease-0", uid=pod["metadata"]["uid"])
        await site.settle()
        successor = await site.pod()
        assert successor["metadata"]["uid"] != pod["metadata"]["uid"]
        assert not successor["spec"].get("nodeName")

    stories(story)


def test_a_pod_that_left_while_the_controllers_were_away_comes_back(stories):
    async def story(site):
        await site.running()
        await site.notice(30)
        await site.run_host_pod("Failed")
        await site.pause()
        await site.remove_host_pod()
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        await site.resume()
        assert await site.pod() is not None
        assert await site.names(site.plane, POD_TEMPLATE) == []

    stories(story)


def test_a_lease_that_ended_while_the_controllers_were_away_leaves_no_node(stories):
    async def story(site):
        await site.running()
        await site.pause()
        await site.end_lease()
        await site.resume()
        assert await site.names(site.plane, NODE) == []
        assert await site.names(site.plane, GPU_LEASE) == []

    stories(story)


def test_a_pod_that_ends_by_itself_before_it_is_deleted_does_not_come_back(stories):
    async def story(site):
        await site.running()
        await site.pause()
        template = requeue.template(await site.pod())
        await site.plane.create(POD_TEMPLATE, template, "default")
        await site.resume()
        assert await site.names(site.plane, POD_TEMPLATE) != [], "the eviction may still follow"
        await site.run_host_pod("Succeeded")
        assert await site.names(site.plane, POD_TEMPLATE) == []
        assert (await site.pod())["status"]["phase"] == "Succeeded"

    stories(story)


def test_a_name_that_was_taken_meanwhile_is_left_to_its_new_owner(stories):
    async def story(site):
        await site.running()
        await site.notice(30)
        await site.pause()
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        other_pod = {
            "metadata": {"name": "train"},
            "spec": {"containers": [{"name": "other", "image": "x"}]},
        }
        await site.plane.create(POD, other_pod, "default")
        await site.resume()
        assert (await site.pod())["spec"]["containers"][0]["name"] == "other"
        assert await site.names(site.plane, POD_TEMPLATE) == []

    stories(story)


def test_a_pod_with_a_controller_is_left_to_it(stories):
    async def story(site):
        await site.running()
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j1"}
        change = {"metadata": {"ownerReferences": [{**owner, "controller": True}]}}
        await site.plane.patch(POD, "train", change, "default")
        await asyncio.sleep(0.1)
        await site.notice(30)
        assert await site.names(site.plane, POD_TEMPLATE) == []

    stories(story)


def test_devices_are_given_back_only_when_the_host_pod_has_left(stories):
    async def story(site):
        await site.running()
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        await site.settle()
        mirror = (await site.all(site.plane, GPU_LEASE))[0]
        assert mirror["metadata"].get("deletionTimestamp"), "release was asked for"
        assert not (await site.lease())["metadata"].get("deletionTimestamp")
        await site.remove_host_pod()
        await site.settle()
        assert (await site.lease())["metadata"].get("deletionTimestamp")

    stories(story)


def test_a_pod_its_agent_deletes_while_it_is_evicted_does_not_come_back(stories):
    async def story(site):
        await site.running(grace=600)
        await site.notice(30)
        assert await site.names(site.plane, POD_TEMPLATE) != [], "it would come back"
        plane = site.planes.plane(AGENT_NAME)
        # As kubectl does it: a second delete, which changes nothing about the first.
        call = Call(
            resource=plane.registry.of(POD), namespace="default", name="train", user=User("agent")
        )
        await delete(plane, call, DeleteOptions())
        await leave(site)
        assert await site.names(site.plane, POD) == []
        assert await site.names(site.plane, POD_TEMPLATE) == []
        assert await site.names(site.host, BID) == []

    stories(story)
