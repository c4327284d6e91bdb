"""An awake Endpoint's replicas follow its traffic; the test plays the activator and the node."""

from __future__ import annotations

from bidplane.api import labels
from bidplane.api.kinds import BID, DEPLOYMENT, ENDPOINT, POD, SERVICE
from bidplane.core.hosting.translation import host_name
from bidplane.core.workloads.replicasets import DELETION_COST

from .conftest import SPACE
from .test_endpoints import copy, create_service, endpoint, replicas

NAME = host_name("default", "llm")
SCALED = {"maxReplicas": 4, "targetConcurrency": 10, "idleSeconds": 60}


async def report(site, **load):
    status = {"demand": {"number": 2, "awake": True, **load}}
    await site.host.patch(ENDPOINT, NAME, {"status": status}, SPACE, subresource="status")
    await site.settle()


async def awake(site, **spec):
    await create_service(site)
    await site.plane.create(ENDPOINT, endpoint(**{**SCALED, **spec}), "default")
    await site.settle()
    await report(site)
    assert await replicas(site) == 1


async def live(site):
    pods = await site.all(site.plane, POD)
    return {p["metadata"]["name"] for p in pods if "deletionTimestamp" not in p["metadata"]}


def test_replicas_follow_the_traffic_and_a_removed_pod_drains_first(stories):
    async def story(site):
        await awake(site)
        await report(site, concurrency=35)
        assert await replicas(site) == 4
        first = await live(site)
        assert len(first) == 4
        await report(site, concurrency=15)
        await site.settle(50)
        assert await replicas(site) == 4
        await site.settle(15)
        # The window is over: two pods get nothing new, and stay as long as they serve.
        drain = (await copy(site))["status"]["drain"]
        assert len(drain["pods"]) == 2
        assert await replicas(site) == 4
        one, other = drain["pods"]
        await report(site, concurrency=15, drained=drain["number"], freePods=[one])
        assert await replicas(site) == 3
        assert await live(site) == first - {one}
        drain = (await copy(site))["status"]["drain"]
        assert drain["pods"] == [other]
        # More traffic: the other one is used again.
        await report(site, concurrency=25, drained=drain["number"], freePods=[])
        assert await replicas(site) == 3
        assert (await copy(site))["status"]["drain"]["pods"] == []
        assert await live(site) == first - {one}

    stories(story)


def test_the_pod_that_was_drained_is_the_one_that_goes(stories):
    async def story(site):
        await awake(site)
        await report(site, concurrency=15)
        pods = await live(site)
        await report(site, concurrency=5)
        await site.settle(61)
        drain = (await copy(site))["status"]["drain"]
        (leaving,) = drain["pods"]
        (staying,) = pods - {leaving}
        # The ReplicaSet would delete the other one: it costs less.
        cheaper = {"metadata": {"annotations": {DELETION_COST: "-100"}}}
        await site.plane.patch(POD, staying, cheaper, "default")
        await report(site, concurrency=5, drained=drain["number"], freePods=[leaving])
        assert await live(site) == {staying}

    stories(story)


def test_a_restarted_controller_takes_nothing_away_before_a_window(stories):
    async def story(site):
        await awake(site)
        await report(site, concurrency=25)
        assert await replicas(site) == 3
        await site.pause()
        status = {"demand": {"number": 2, "awake": True, "concurrency": 0}}
        await site.host.patch(ENDPOINT, NAME, {"status": status}, SPACE, subresource="status")
        await site.resume()
        await site.settle(50)
        assert (await copy(site))["status"]["drain"]["pods"] == []
        await site.settle(15)
        assert len((await copy(site))["status"]["drain"]["pods"]) == 2

    stories(story)


def test_a_stay_is_a_term_of_its_bids(stories):
    async def story(site):
        await awake(site, staySeconds=90)
        deployment = await site.plane.get(DEPLOYMENT, "llm", "default")
        notes = deployment["spec"]["template"]["metadata"]["annotations"]
        assert notes[labels.TERM] == "90"
        (bid,) = await site.all(site.host, BID)
        assert bid["spec"]["termSeconds"] == 90

    stories(story)


def test_one_that_is_never_scaled_stays_as_it_was(stories):
    async def story(site):
        await awake(site, maxReplicas=0)
        await report(site, concurrency=1000)
        assert await replicas(site) == 1
        assert await site.plane.get(SERVICE, "llm", "default")

    stories(story)
