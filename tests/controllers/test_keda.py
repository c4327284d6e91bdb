"""KEDA's objects in an agent's plane, as kubectl and Helm write them."""

from __future__ import annotations

import pytest

from bidplane.api.kinds import ENDPOINT, HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE, SERVICE
from bidplane.errors import ApiError, NotFound

from .test_endpoints import copy, create_service, endpoint

REF = {"name": "llm", "kind": "Deployment", "apiVersion": "apps/v1", "service": "llm", "port": 80}


async def apply(site, kind=HTTP_SCALED_OBJECT, name="llm", **spec):
    if kind is HTTP_SCALED_OBJECT:
        spec.setdefault("scaleTargetRef", REF)
    else:
        spec.setdefault("target", {"service": "llm", "port": 80})
        spec.setdefault("scalingMetric", {"concurrency": {"targetValue": 5}})
    await site.plane.create(kind, {"metadata": {"name": name}, "spec": spec}, "default")
    await site.settle()


async def ready(site, kind=HTTP_SCALED_OBJECT, name="llm"):
    status = (await site.plane.get(kind, name, "default"))["status"]
    (condition,) = status["conditions"]
    return condition["status"], condition["reason"], condition["message"], status.get("phase")


def test_a_scaled_object_is_an_endpoint_that_follows_it_and_goes_with_it(stories):
    async def story(site):
        await create_service(site)
        await apply(site, hosts=["llm.trainer.localhost"], scaledownPeriod=1800)
        spec = (await copy(site))["spec"]
        assert (spec["idleSeconds"], spec["target"]["deployment"]) == (1800, "llm")
        status, reason, message, phase = await ready(site)
        assert (status, reason, phase) == ("True", "Reconciled", "Asleep")
        assert "llm.trainer.localhost" in message
        shown = (await site.plane.get(HTTP_SCALED_OBJECT, "llm", "default"))["status"]
        assert shown["targetWorkload"] == "apps/v1/Deployment/llm"
        assert shown["targetService"] == "llm:80"
        change = {"spec": {"scaledownPeriod": 60, "replicas": {"max": 3}}}
        await site.plane.patch(HTTP_SCALED_OBJECT, "llm", change, "default")
        await site.settle()
        spec = (await copy(site))["spec"]
        assert (spec["idleSeconds"], spec["maxReplicas"]) == (60, 3)
        # Its Endpoint says what it says, whoever edits it.
        await site.plane.patch(ENDPOINT, "llm", {"spec": {"idleSeconds": 5}}, "default")
        await site.settle()
        assert (await copy(site))["spec"]["idleSeconds"] == 60
        await site.plane.delete(HTTP_SCALED_OBJECT, "llm", "default")
        await site.settle()
        assert not await site.all(site.host, ENDPOINT)

    stories(story)


def test_a_field_that_is_not_served_is_named_and_its_endpoint_stays(stories):
    async def story(site):
        await create_service(site)
        await apply(site, placeholderConfig={"enabled": True})
        status, reason, message, _ = await ready(site)
        assert (status, reason) == ("False", "UnsupportedField")
        assert message.startswith("placeholderConfig:")
        assert not await site.all(site.plane, ENDPOINT)
        change = {"spec": {"placeholderConfig": None}}
        await site.plane.patch(HTTP_SCALED_OBJECT, "llm", change, "default")
        await site.settle()
        assert (await ready(site))[0] == "True"
        await site.plane.patch(HTTP_SCALED_OBJECT, "llm", {"spec": {"hosts": ["*.a"]}}, "default")
        await site.settle()
        status, reason, message, _ = await ready(site)
        assert (status, reason) == ("False", "UnsupportedField")
        assert "stays as it was" in message
        assert (await copy(site))["status"]["phase"] == "Asleep"

    stories(story)


def test_an_endpoint_of_somebody_else_is_not_touched(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(idleSeconds=7), "default")
        await site.settle()
        await apply(site)
        status, reason, message, _ = await ready(site)
        assert (status, reason) == ("False", "EndpointTaken")
        assert "llm" in message
        assert (await copy(site))["spec"]["idleSeconds"] == 7
        # Nor with another name for the same Deployment: the claim says who holds it.
        await apply(site, name="two", hosts=["two.trainer.localhost"])
        status, reason, message, phase = await ready(site, name="two")
        assert (status, reason, phase) == ("False", "TargetTaken", "Refused")
        assert "default/llm" in message
        # It takes over once the name is free.
        await site.plane.delete(ENDPOINT, "llm", "default")
        await site.settle(2)
        assert (await ready(site))[1] != "EndpointTaken"
        await site.plane.delete(HTTP_SCALED_OBJECT, "llm", "default")
        await site.settle()
        with pytest.raises(NotFound):
            await site.plane.get(ENDPOINT, "llm", "default")

    stories(story)


def test_a_route_finds_the_deployment_of_its_service_once_it_is_there(stories):
    async def story(site):
        await apply(site, INTERCEPTOR_ROUTE)
        status, reason, message, _ = await ready(site, INTERCEPTOR_ROUTE)
        assert (status, reason) == ("False", "UnsupportedField")
        assert "no Service llm" in message
        await create_service(site)
        await site.settle()
        assert (await ready(site, INTERCEPTOR_ROUTE))[0] == "True"
        made = await site.plane.get(ENDPOINT, "llm", "default")
        assert made["spec"]["target"]["deployment"] == "llm"
        assert made["spec"]["targetConcurrency"] == 5
        await site.plane.delete(SERVICE, "llm", "default")
        await site.settle()
        assert (await ready(site, INTERCEPTOR_ROUTE))[0] == "False"

    stories(story)


def test_one_of_both_kinds_has_a_name(stories):
    async def story(site):
        await create_service(site)
        await apply(site)
        await apply(site, INTERCEPTOR_ROUTE)
        status, reason, message, _ = await ready(site, INTERCEPTOR_ROUTE)
        assert (status, reason) == ("False", "EndpointTaken")
        assert "HTTPScaledObject llm" in message
        await site.plane.delete(INTERCEPTOR_ROUTE, "llm", "default")
        await site.settle()
        assert (await ready(site))[0] == "True"

    stories(story)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({"scaleTargetRef": {"service": "a"}}, "port"),
        ({"scaleTargetRef": {**REF, "portName": "x"}}, "portName"),
        ({"scaledownPeriod": -1}, "scaledownPeriod"),
        ({"hosts": "a"}, "hosts"),
    ],
)
def test_what_the_add_ons_crd_refuses_is_refused(stories, spec, part):
    async def story(site):
        with pytest.raises(ApiError) as refusal:
            await apply(site, **spec)
        assert part in str(refusal.value)

    stories(story)


def test_a_name_that_is_not_delegated_is_said_so(stories):
    async def story(site):
        await create_service(site)
        await apply(site, hosts=["shop.example.com"])
        status, reason, message, _ = await ready(site)
        assert (status, reason) == ("False", "HostNotDelegated")
        assert "shop.example.com" in message

    stories(story)


def test_what_was_deleted_while_nobody_looked_is_cleaned_up(stories):
    async def story(site):
        await create_service(site)
        await apply(site)
        await site.pause()
        await site.plane.delete(HTTP_SCALED_OBJECT, "llm", "default")
        await site.resume()
        await site.settle()
        assert not await site.all(site.plane, ENDPOINT)

    stories(story)
