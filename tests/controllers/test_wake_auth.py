"""The token of `wake.auth`: from the plane's Secret to a digest on the host."""

from __future__ import annotations

import base64

from bidplane.api.kinds import ENDPOINT, SECRET
from bidplane.core.activation.wakeauth import digest_of

from .test_endpoints import copy, create_service, endpoint


async def digest(site):
    return (await copy(site))["status"]["wakeDigest"]


def data(token):
    return {"token": base64.b64encode(token).decode()}


def test_the_host_has_a_digest_that_follows_the_secret(stories):
    async def story(site):
        await create_service(site)
        await site.plane.create(ENDPOINT, endpoint(wake={"auth": {"secret": "wake"}}), "default")
        await site.settle()
        assert await digest(site) == ""
        secret = {"metadata": {"name": "wake"}, "data": data(b"sesame\n")}
        await site.plane.create(SECRET, secret, "default")
        await site.settle(31)
        uid = (await copy(site))["metadata"]["uid"]
        assert await digest(site) == digest_of(uid, b"sesame")
        # The plane's own object does not have it: a weak token could be guessed from it.
        shown = await site.plane.get(ENDPOINT, "llm", "default")
        assert not shown["status"]["wakeDigest"]
        await site.plane.patch(SECRET, "wake", {"data": data(b"other")}, "default")
        await site.settle(31)
        assert await digest(site) == digest_of(uid, b"other")
        await site.plane.delete(SECRET, "wake", "default")
        await site.settle(31)
        assert await digest(site) == ""

    stories(story)
