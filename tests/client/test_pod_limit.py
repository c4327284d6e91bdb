"""The cap on pods where a user meets it: a mistyped number, the CLI, and what the cluster says."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.api.kinds import DEPLOYMENT, EVENT, POD
from bidplane.client import AsyncClient
from bidplane.errors import ApiError

from .conftest import Place

pytestmark = pytest.mark.slow

WEB = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 40,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "web:1"}]},
        },
    },
}


def test_a_plane_stops_at_its_limit_and_goes_on_when_it_is_raised(place: Place) -> None:
    kubeconfig = place.agent()
    agent = kubeconfig.stem
    assert "may have 3 pods" in place.bidplane("plane", "limit", agent, "--pods", "3")
    assert "at least 1" in place.bidplane("plane", "limit", agent, "--pods", "0", code=2)
    assert "no plane" in place.bidplane("plane", "limit", "nobody", "--pods", "3", code=2)

    async def pods(client: AsyncClient) -> int:
        return len((await client.kube.list(POD, client.namespace)).items)

    async def work() -> None:
        async with AsyncClient(kubeconfig=kubeconfig) as client:
            await client.kube.create(DEPLOYMENT, WEB, client.namespace)
            while True:
                events = (await client.kube.list(EVENT, client.namespace)).items
                failed = [event for event in events if event["reason"] == "FailedCreate"]
                if failed:
                    break
                await asyncio.sleep(0.1)
            assert f"`bidplane plane limit {agent} --pods NUMBER`" in failed[0]["message"]
            assert await pods(client) == 3
            # One refusal for each try, not one for each of the 37 that are missing.
            assert sum(event.get("count", 1) for event in failed) < 20
            await asyncio.to_thread(place.bidplane, "plane", "limit", agent, "--pods", "50")
            while await pods(client) < 40:
                await asyncio.sleep(0.1)
            many = {"spec": {"replicas": 3_000_000_000}}
            with pytest.raises(ApiError, match="int32"):
                await client.kube.patch(DEPLOYMENT, "web", many, client.namespace)
            await client.kube.delete(DEPLOYMENT, "web", client.namespace)

    asyncio.run(asyncio.wait_for(work(), 120))
