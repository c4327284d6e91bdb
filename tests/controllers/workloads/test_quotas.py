"""A ResourceQuota tells what is used, and refuses what is too much."""

import asyncio

import pytest

from bidplane.api.kinds import CONFIG_MAP, POD, REPLICA_SET, RESOURCE_QUOTA, SERVICE
from bidplane.errors import ApiError

from .conftest import template


def pod(cpu, **limits):
    resources = {"requests": {"cpu": cpu}, "limits": limits}
    return {"containers": [{"name": "main", "image": "x", "resources": resources}]}


def test_what_is_used_is_told(stories):
    async def story(site):
        await site.client.create(CONFIG_MAP, {"metadata": {"name": "a"}}, site.namespace)
        hard = {"pods": "4", "requests.cpu": "2", "requests.nvidia.com/gpu": "8"}
        await site.create(RESOURCE_QUOTA, "q", {"hard": hard})
        await site.status(
            RESOURCE_QUOTA, "q", hard=hard,
            used={"pods": "0", "requests.cpu": "0", "requests.nvidia.com/gpu": "0"},
        )  # fmt: skip
        await site.create(POD, "a", pod("500m", **{"nvidia.com/gpu": "2"}))
        await site.create(POD, "b", pod("250m"))
        await site.status(
            RESOURCE_QUOTA, "q",
            used={"pods": "2", "requests.cpu": "750m", "requests.nvidia.com/gpu": "2"},
        )  # fmt: skip
        await site.ends(await site.get(POD, "a"))
        await site.status(
            RESOURCE_QUOTA, "q",
            used={"pods": "1", "requests.cpu": "250m", "requests.nvidia.com/gpu": "0"},
        )  # fmt: skip

    stories(story)


def test_more_than_its_share_is_refused(stories):
    async def story(site):
        hard = {"pods": "1", "requests.cpu": "1"}
        await site.create(RESOURCE_QUOTA, "q", {"hard": hard})
        await site.status(RESOURCE_QUOTA, "q", used={"pods": "0", "requests.cpu": "0"})
        with pytest.raises(ApiError) as refused:
            await site.create(POD, "big", pod("1500m"))
        assert refused.value.code == 403
        assert str(refused.value) == (
            'pods "big" is forbidden: exceeded quota: q, requested: requests.cpu=1500m,'
            " used: requests.cpu=0, limited: requests.cpu=1"
        )
        with pytest.raises(ApiError, match=r"failed quota: q: must specify requests.cpu"):
            await site.create(POD, "vague", {"containers": [{"name": "main", "image": "x"}]})
        tries = [site.create(POD, f"p-{number}", pod("100m")) for number in range(4)]
        done = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(answer, ApiError) for answer in done) == 3, "one place, one pod"
        await site.status(RESOURCE_QUOTA, "q", used={"pods": "1", "requests.cpu": "100m"})

    stories(story)


def test_a_replica_set_says_what_refused_its_pods(stories):
    async def story(site):
        await site.create(RESOURCE_QUOTA, "q", {"hard": {"pods": "1"}})
        await site.status(RESOURCE_QUOTA, "q", used={"pods": "0"})
        spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template(), "replicas": 3}
        await site.create(REPLICA_SET, "web", spec)
        failure = await site.condition(REPLICA_SET, "web", "ReplicaFailure")
        assert failure["reason"] == "FailedCreate"
        assert (
            "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
            in (failure["message"])
        )
        await site.status(REPLICA_SET, "web", replicas=1)
        await site.patch(RESOURCE_QUOTA, "q", {"spec": {"hard": {"pods": "3"}}})
        await site.status(REPLICA_SET, "web", replicas=3)

    stories(story)


def test_a_change_that_takes_too_much_is_refused(stories):
    async def story(site):
        ports = [{"name": "a", "port": 80}]
        await site.create(RESOURCE_QUOTA, "q", {"hard": {"services.nodeports": "1"}})
        await site.status(RESOURCE_QUOTA, "q", used={"services.nodeports": "0"})
        await site.create(SERVICE, "s", {"type": "NodePort", "ports": ports})
        await site.status(RESOURCE_QUOTA, "q", used={"services.nodeports": "1"})
        more = {"spec": {"ports": [*ports, {"name": "b", "port": 81}]}}
        with pytest.raises(ApiError, match="exceeded quota: q") as refused:
            await site.patch(SERVICE, "s", more)
        assert refused.value.code == 403
        assert len((await site.get(SERVICE, "s"))["spec"]["ports"]) == 1
        # What takes no more than it has is let through.
        await site.patch(SERVICE, "s", {"spec": {"selector": {"a": "b"}}})

    stories(story)
