"""
No object that leads traffic gives one agent another agent's.

Each case is an object in the thief's plane that names a host of the trainer. The activator itself
reads the Endpoints that the host has then, and says who serves that host.
"""

from __future__ import annotations

import asyncio

import pytest

from bidplane.activator.activator import Activator
from bidplane.api import labels
from bidplane.api.kinds import (
    AGENT,
    ENDPOINT,
    ENDPOINT_SLICE,
    HTTP_SCALED_OBJECT,
    INTERCEPTOR_ROUTE,
    SERVICE,
    Kind,
)
from bidplane.errors import ApiError
from bidplane.http.proxy.pool import BackendPool

from .test_endpoints import create_service, endpoint

HOST = "llm.trainer.localhost"
INGRESS = Kind("networking.k8s.io", "v1", "Ingress", "ingresses")
HTTP_ROUTE = Kind("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes")
REF = {"name": "llm", "kind": "Deployment", "apiVersion": "apps/v1", "service": "llm", "port": 80}


def made(spec, **metadata):
    return {"metadata": {"name": "stolen", **metadata}, "spec": spec}


BACKEND = {"service": {"name": "llm", "port": {"number": 80}}}
PATH = {"path": "/", "pathType": "Prefix", "backend": BACKEND}
THEFTS = {
    "host": (ENDPOINT, endpoint("stolen", hosts=[HOST])),
    "host among its own": (ENDPOINT, endpoint("stolen", hosts=["llm.thief.localhost", HOST])),
    "longer path": (ENDPOINT, endpoint("stolen", hosts=[HOST], pathPrefixes=["/v1/chat"])),
    "header": (ENDPOINT, endpoint("stolen", hosts=[HOST], headers=[{"name": "X-A"}])),
    "routes": (ENDPOINT, endpoint("stolen", routes=[{"hosts": [HOST]}])),
    "static routes": (
        ENDPOINT,
        endpoint("stolen", staticRoutes=[{"routes": [{"hosts": [HOST]}], "always": True}]),
    ),
    "label of the agent": (
        ENDPOINT,
        made(endpoint(hosts=[HOST])["spec"], labels={labels.AGENT: "trainer"}),
    ),
    "name of the agent's": (ENDPOINT, endpoint("llm", hosts=[HOST])),
    "HTTPScaledObject": (HTTP_SCALED_OBJECT, made({"hosts": [HOST], "scaleTargetRef": REF})),
    "InterceptorRoute": (
        INTERCEPTOR_ROUTE,
        made(
            {
                "target": {"service": "llm", "port": 80},
                "rules": [{"hosts": [HOST]}],
                "scalingMetric": {"concurrency": {"targetValue": 5}},
            }
        ),
    ),
    "Ingress": (INGRESS, made({"rules": [{"host": HOST, "http": {"paths": [PATH]}}]})),
    "HTTPRoute": (
        HTTP_ROUTE,
        made({"hostnames": [HOST], "rules": [{"backendRefs": [{"name": "llm", "port": 80}]}]}),
    ),
    "Service by name": (
        SERVICE,
        made({"type": "ExternalName", "externalName": HOST}),
    ),
    "EndpointSlice": (
        ENDPOINT_SLICE,
        {
            "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "llm"}},
            "addressType": "FQDN",
            "endpoints": [{"addresses": [HOST]}],
            "ports": [{"port": 80}],
        },
    ),
}
UNSAID = {"HTTPRoute"}  # the plane of an agent does not serve it
PATHS = (b"/", b"/v1/chat", b"/v1/chat/completions")


@pytest.mark.parametrize("case", THEFTS)
@pytest.mark.parametrize("first", [False, True], ids=["later", "earlier"])
def test_an_agent_cannot_take_anothers_traffic(stories, case, first):
    kind, manifest = THEFTS[case]

    async def steal(site):
        await site.host.create(AGENT, {"metadata": {"name": "thief"}, "spec": {"owner": "eve"}})
        await site.settle()
        thief = type(site).__new__(type(site))
        thief.plane = site.planes.client("thief")
        await create_service(thief)
        if case in UNSAID:
            with pytest.raises(ApiError):
                await thief.plane.create(kind, manifest, "default")
        else:
            await thief.plane.create(kind, manifest, "default")

    async def story(site):
        if first:
            await steal(site)
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(), "default")
        await site.settle(2)
        if not first:
            await steal(site)
        await site.settle(3)
        activator = Activator(site.host, BackendPool(), clock=site.clock)
        task = asyncio.create_task(activator.run())
        await site.settle()
        routes = activator._build()
        for path in PATHS:
            live = routes.find(HOST.encode(), path, [(b"x-a", b"1")])
            assert live is not None, case
            assert live.endpoint.labels[labels.AGENT] == "trainer"
            assert live.endpoint.namespace == "agent-trainer"
            assert live._statics.find(HOST.encode(), path, []) is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stories(story)
