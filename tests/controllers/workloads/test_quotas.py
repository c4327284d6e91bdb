"""A ResourceQuota tells what is used."""

from bidplane.api.kinds import CONFIG_MAP, POD, RESOURCE_QUOTA


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
