"""A claim that is deleted goes at once, or with its last pod."""

from bidplane.api.kinds import POD, VOLUME_CLAIM

CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
POD_SPEC = {
    "restartPolicy": "Never",
    "nodeName": "somewhere",
    "containers": [{"name": "main", "image": "x"}],
    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
}


def test_a_claim_in_use_is_protected(stories):
    async def story(site):
        for name in ("data", "unused"):
            await site.create(VOLUME_CLAIM, name, CLAIM)
        await site.create(POD, "user", POD_SPEC)

        async def left():
            return [claim["metadata"]["name"] for claim in await site.all(VOLUME_CLAIM)]

        async def one_left():
            return await left() == ["data"]

        async def none_left():
            return await left() == []

        for name in ("data", "unused"):
            await site.client.delete(VOLUME_CLAIM, name, site.namespace)
        await site.until(one_left)
        await site.ends(await site.get(POD, "user"))
        assert await left() == ["data"]
        await site.delete(POD, "user", grace_seconds=0)
        await site.until(none_left)

    stories(story)
