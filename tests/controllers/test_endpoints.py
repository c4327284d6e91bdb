"""
Endpoints on real planes: known on the host, answered in the plane. The test plays the activator,
the exchange and the node.
"""

from __future__ import annotations

import asyncio

import pytest

from bidplane.api import labels
from bidplane.api.kinds import (
    AGENT,
    BID,
    DEPLOYMENT,
    ENDPOINT,
    ENDPOINT_SLICE,
    GPU_LEASE,
    POD,
    SERVICE,
)
from bidplane.core.hosting.translation import host_name
from bidplane.errors import ApiError

from .conftest import SPACE


def endpoint(name="llm", **spec):
    target = {"deployment": "llm", "service": "llm"}
    return {"metadata": {"name": name}, "spec": {"target": target, **spec}}


async def create_service(site, *, replicas=0):
    container = {
        "name": "main",
        "image": "llm:1",
        "ports": [{"name": "http", "containerPort": 8000}],
        "resources": {"limits": {labels.GPU_RESOURCE: "2"}},
    }
    template = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "llm"}}, "template": template}
    await site.plane.create(DEPLOYMENT, {"metadata": {"name": "llm"}, "spec": spec}, "default")
    ports = [{"port": 80, "targetPort": "http"}]
    service = {"metadata": {"name": "llm"}, "spec": {"selector": {"app": "llm"}, "ports": ports}}
    await site.plane.create(SERVICE, service, "default")


async def copy(site, name="llm"):
    return await site.host.get(ENDPOINT, host_name("default", name), SPACE)


async def demand(site, number, *, awake):
    status = {"demand": {"number": number, "awake": awake, "reason": "Request"}}
    name = host_name("default", "llm")
    await site.host.patch(ENDPOINT, name, {"status": status}, SPACE, subresource="status")
    await site.settle()


async def replicas(site):
    return (await site.plane.get(DEPLOYMENT, "llm", "default"))["spec"]["replicas"]


async def run_pod(site, *, lease):
    """As exchange and node do it."""
    (bid,) = [b for b in await site.all(site.host, BID) if not b.get("status")]
    assert bid["spec"]["urgent"]
    await site.win(bid, name=lease)
    await site.settle()
    (pod,) = await site.all(site.host, POD)
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": "10.9.8.7", "conditions": [ready]}
    name = pod["metadata"]["name"]
    await site.host.patch(POD, name, {"status": status}, SPACE, subresource="status")
    await site.settle()


def test_traffic_wakes_the_target_and_lets_it_sleep(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(), "default")
        await site.settle()
        status = (await copy(site))["status"]
        assert (status["phase"], status["hosts"]) == ("Asleep", ["llm.trainer.localhost"])
        for life in (1, 2):
            await demand(site, 2 * life, awake=True)
            assert await replicas(site) == 1
            status = (await copy(site))["status"]
            assert (status["phase"], status["answers"]) == ("Waking", 2 * life)
            await run_pod(site, lease=f"lease-{life}")
            (backend,) = (await copy(site))["status"]["backends"]
            assert (backend["address"], backend["port"], backend["ready"]) == (
                "10.9.8.7",
                8000,
                True,
            )
            shown = await site.plane.get(ENDPOINT, "llm", "default")
            assert shown["status"]["phase"] == "Ready"
            await demand(site, 2 * life + 1, awake=False)
            assert await replicas(site) == 0
            status = (await copy(site))["status"]
            assert (status["backends"], status["answers"]) == ([], 2 * life + 1)
            await site.remove_host_pod()
            await site.settle(5)
            assert (await copy(site))["status"]["phase"] == "Asleep"
            # Its lease is asked back: the exchange ends it.
            lease = await site.lease(f"lease-{life}")
            assert lease["metadata"].get("deletionTimestamp")
            await site.end_lease(f"lease-{life}")
            await site.settle()
            assert not await site.all(site.plane, GPU_LEASE)

    stories(story)


def test_an_address_that_an_agent_writes_is_not_used(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(), "default")
        await site.settle()
        await demand(site, 2, awake=True)
        (pod,) = await site.all(site.plane, POD)
        addresses = []

        async def follow():
            listing = await site.host.list(ENDPOINT)
            async for event in site.host.watch(ENDPOINT, resource_version=listing.resource_version):
                backends = event.object["status"].get("backends") or []
                addresses.extend(backend["address"] for backend in backends)

        async def forge():
            """In its plane an agent may write any status; the syncer repairs it, but later."""
            ready = {"type": "Ready", "status": "True"}
            forged = {"podIP": "127.0.0.1", "conditions": [ready]}
            name = pod["metadata"]["name"]
            await site.plane.patch(POD, name, {"status": forged}, "default", subresource="status")
            await site.settle()

        following = asyncio.create_task(follow())
        await forge()
        await run_pod(site, lease="lease-1")
        await forge()
        following.cancel()
        assert set(addresses) == {"10.9.8.7"}

    stories(story)


def test_a_route_is_known_while_its_plane_sleeps_and_only_a_demand_wakes_it(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(), "default")
        await demand_nothing(site)
        await site.controllers.sleep("trainer")
        await site.planes.sleep("trainer")
        name = host_name("default", "llm")
        note = {"metadata": {"annotations": {labels.ENDPOINT_REQUEST: "wake 1"}}}
        await site.host.patch(ENDPOINT, name, note, SPACE)
        await site.settle()
        assert not site.planes.is_awake("trainer")
        assert (await copy(site))["status"]["hosts"]
        await demand(site, 2, awake=True)
        assert site.planes.is_awake("trainer")
        assert await replicas(site) == 1

    async def demand_nothing(site):
        await site.settle()
        await demand(site, 1, awake=False)

    stories(story)


@pytest.mark.parametrize("asleep", [False, True])
def test_what_is_asked_on_the_host_is_carried_into_the_plane_once(stories, asleep):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(), "default")
        await site.settle()
        await demand(site, 1, awake=False)
        assert (await copy(site))["status"]["gpus"] == 2
        if asleep:
            await site.controllers.sleep("trainer")
            await site.planes.sleep("trainer")
        asked = {labels.ENDPOINT_REPLICAS: "3", labels.ENDPOINT_RETRY: "first"}
        name = host_name("default", "llm")
        await site.host.patch(ENDPOINT, name, {"metadata": {"annotations": asked}}, SPACE)
        await site.settle()
        assert (await site.plane.get(ENDPOINT, "llm", "default"))["spec"]["replicas"] == 3
        answered = await copy(site)
        assert answered["spec"]["replicas"] == 3
        assert not asked.keys() & answered["metadata"]["annotations"].keys()
        template = (await site.plane.get(DEPLOYMENT, "llm", "default"))["spec"]["template"]
        assert template["metadata"]["annotations"][labels.RESTARTED_AT] == "first"
        # The agent changes its mind, and nothing changes it back.
        change = {"spec": {"replicas": 1}}
        await site.plane.patch(ENDPOINT, "llm", change, "default")
        await site.settle(5)
        assert (await copy(site))["spec"]["replicas"] == 1

    stories(story)


def test_a_change_and_a_deletion_reach_the_host(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(idleSeconds=60), "default")
        await site.settle()
        change = {"spec": {"idleSeconds": None, "maxHeld": 5}}
        await site.plane.patch(ENDPOINT, "llm", change, "default")
        await site.settle()
        spec = (await copy(site))["spec"]
        assert (spec["idleSeconds"], spec["maxHeld"]) == (300, 5)
        await site.plane.delete(ENDPOINT, "llm", "default")
        await site.settle()
        assert not await site.all(site.host, ENDPOINT)

    stories(story)


def test_a_mistake_inside_a_field_that_is_taken_back_reaches_the_host(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(), "default")
        await site.settle()
        wrong = {"target": {"port": 99}, "ladder": {"sleep": {"kind": "comfyui", "seconds": 5}}}
        await site.plane.patch(ENDPOINT, "llm", {"spec": wrong}, "default")
        await site.settle()
        assert (await copy(site))["status"]["reason"] == "NoSuchPort"
        right = {"target": {"port": None}, "ladder": {"sleep": None}}
        await site.plane.patch(ENDPOINT, "llm", {"spec": right}, "default")
        await site.settle()
        on_host = await copy(site)
        assert (on_host["status"]["phase"], on_host["status"]["reason"]) == ("Asleep", "")
        original = await site.plane.get(ENDPOINT, "llm", "default")
        assert on_host["spec"] == original["spec"]

    stories(story)


def test_a_name_that_is_taken_is_free_when_its_holder_goes(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint("first"), "default")
        await site.settle(2)
        await site.plane.create(
            ENDPOINT, endpoint("second", hosts=["first.trainer.localhost"]), "default"
        )
        await site.settle()
        status = (await site.plane.get(ENDPOINT, "second", "default"))["status"]
        assert (status["phase"], status["reason"]) == ("Refused", "TargetTaken")
        assert "default/first" in status["message"]
        await site.plane.delete(ENDPOINT, "first", "default")
        await site.settle()
        assert (await copy(site, "second"))["status"]["phase"] == "Asleep"
        # And a name that the owner takes away is not served any more.
        await site.host.patch(AGENT, "trainer", {"spec": {"hosts": ["*.other.test"]}})
        await site.settle()
        status = (await copy(site, "second"))["status"]
        assert (status["reason"], status["hosts"]) == ("HostNotDelegated", [])

    stories(story)


def test_a_missing_target_is_named_and_then_found(stories):
    async def story(site):
        await site.plane.create(ENDPOINT, endpoint(), "default")
        await site.settle()
        assert (await copy(site))["status"]["reason"] == "NoDeployment"
        await create_service(site)
        await site.settle()
        assert (await copy(site))["status"]["phase"] == "Asleep"

    stories(story)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({"target": None}, "target"),
        ({"idleSeconds": -1}, "idleSeconds"),
        ({"target": {"deployment": "llm", "service": "llm", "port": 99999}}, "port"),
        ({"target": {"deployment": "a", "service": "a", "port": 1, "portName": "x"}}, "portName"),
        ({"hosts": ["*.trainer.localhost"]}, "hosts"),
        ({"hosts": ["UPPER"]}, "hosts"),
        ({"pathPrefixes": ["v1"]}, "pathPrefixes"),
        ({"onCold": "wait"}, "onCold"),
        ({"placeholder": {"body": "x"}}, "placeholder"),
        ({"headers": [{"name": "a b"}]}, "headers"),
        ({"wake": {"perHour": 0}}, "perHour"),
        ({"maxHeld": 0}, "maxHeld"),
        ({"replicas": 3, "maxReplicas": 2, "targetConcurrency": 1}, "maxReplicas"),
        ({"maxReplicas": 2}, "needs a target"),
        ({"maxReplicas": 2, "targetConcurrency": 1, "warmPath": "direct"}, "not counted"),
        ({"targetRate": {"perSecond": 0}}, "perSecond"),
        ({"targetRate": {"perSecond": 1, "granularitySeconds": 90}}, "granularitySeconds"),
        ({"wake": {"auth": {"key": "token"}}}, "secret"),
        ({"routes": [{"hosts": ["*"]}]}, "hosts"),
    ],
)
def test_bad_input_is_refused_with_its_field(stories, spec, part):
    async def story(site):
        manifest = endpoint()
        manifest["spec"] = {k: v for k, v in {**manifest["spec"], **spec}.items() if v is not None}
        with pytest.raises(ApiError) as refusal:
            await site.plane.create(ENDPOINT, manifest, "default")
        assert refusal.value.code in (400, 422)
        assert part in str(refusal.value)

    stories(story)


async def led_to(site):
    """Return where the slices of the Service lead, as a gateway reads them."""
    return {
        (address, port["port"], port["name"])
        for slice_ in await site.all(site.plane, ENDPOINT_SLICE)
        if slice_["metadata"]["labels"].get("kubernetes.io/service-name") == "llm"
        for entry in slice_["endpoints"]
        if entry["conditions"]["ready"]
        for address in entry["addresses"]
        for port in slice_["ports"]
    }


def test_a_direct_warm_path_leads_past_the_activator_and_back(stories):
    activator, pod = ("192.0.2.9", 6445, ""), ("10.9.8.7", 8000, "")

    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(warmPath="direct"), "default")
        await site.settle()
        assert await led_to(site) == {activator}
        for life in (1, 2):
            await demand(site, 2 * life, awake=True)
            assert await led_to(site) == {activator}
            await run_pod(site, lease=f"lease-{life}")
            assert await led_to(site) == {pod}
            await demand(site, 2 * life + 1, awake=False)
            assert activator in await led_to(site)
            await site.remove_host_pod()
            await site.settle(5)
            assert await led_to(site) == {activator}
            await site.end_lease(f"lease-{life}")
            await site.settle()
        await site.plane.patch(ENDPOINT, "llm", {"spec": {"warmPath": "activator"}}, "default")
        await site.settle()
        assert await led_to(site) == set()
        await site.plane.patch(ENDPOINT, "llm", {"spec": {"warmPath": "direct"}}, "default")
        await site.settle()
        assert await led_to(site) == {activator}
        (original,) = await site.all(site.plane, ENDPOINT)
        (ours,) = [
            s
            for s in await site.all(site.plane, ENDPOINT_SLICE)
            if s["metadata"]["name"] == "llm-activator"
        ]
        (owner,) = ours["metadata"]["ownerReferences"]  # so it goes with its Endpoint
        assert (owner["kind"], owner["uid"]) == ("Endpoint", original["metadata"]["uid"])

    stories(story)


def test_the_pods_of_a_fallback_are_known_while_the_service_sleeps(stories):
    async def story(site):
        await create_service(site)
        metadata = {"name": "cloud", "labels": {"app": "cloud"}}
        container = {"name": "main", "image": "cloud:1", "ports": [{"containerPort": 9000}]}
        container["resources"] = {"limits": {labels.GPU_RESOURCE: "2"}}
        pod = {"metadata": metadata, "spec": {"containers": [container]}}
        await site.plane.create(POD, pod, "default")
        ports = [{"port": 80, "targetPort": 9000}]
        service = {"metadata": {"name": "cloud"}, "spec": {"selector": {"app": "cloud"}}}
        service["spec"]["ports"] = ports
        await site.plane.create(SERVICE, service, "default")
        fallback = {"service": "cloud", "port": 80}
        await site.plane.create(ENDPOINT, endpoint(fallback=fallback), "default")
        await site.settle()
        assert (await copy(site))["status"]["fallbacks"] == []  # it is not ready
        (bid,) = [b for b in await site.all(site.host, BID) if not b.get("status")]
        await site.win(bid)
        await site.settle()
        (host_pod,) = await site.all(site.host, POD)
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIP": "10.9.8.7", "conditions": [ready]}
        name = host_pod["metadata"]["name"]
        await site.host.patch(POD, name, {"status": status}, SPACE, subresource="status")
        await site.settle()
        (backend,) = (await copy(site))["status"]["fallbacks"]
        assert (backend["pod"], backend["address"], backend["port"]) == ("cloud", "10.9.8.7", 9000)
        assert (await copy(site))["status"]["phase"] == "Asleep"

    stories(story)
