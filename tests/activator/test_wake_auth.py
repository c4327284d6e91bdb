"""A service with `wake.auth`: a request without its token never wakes it."""

from __future__ import annotations

import asyncio

from bidplane.core.activation.wakeauth import digest_of

from .conftest import get, header

AUTH = {"auth": {"secret": "wake"}}
TOKEN = "Authorization: Bearer sesame"


async def with_token(service, token=b"sesame"):
    await service.endpoint(wake=AUTH)
    await service.says(wakeDigest=digest_of(service.live().endpoint.uid, token))


def test_only_its_token_wakes_it(play):
    async def story(service):
        await with_token(service)
        for headers in ([], ["Authorization: Bearer open"], ["Authorization: Basic sesame"]):
            answer = await service.ask(get("/", *headers))
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert header(answer, "WWW-Authenticate") == "Bearer"
        assert (await service.status())["demand"]["number"] == 1
        # What wakes nothing with a token either is told so, and the token changes nothing.
        assert (await service.ask(get("/healthz", TOKEN))).startswith(b"HTTP/1.1 503 ")
        asked = asyncio.create_task(service.ask(get("/", TOKEN)))
        number = await service.demanded(awake=True)
        # It is waking: now anybody waits.
        other = asyncio.create_task(service.ask(get("/other")))
        await service.held(2)
        await service.start_pod()
        await service.ready(number)
        assert (await asked).endswith(b"ok")
        assert (await other).endswith(b"ok")
        assert (await service.ask(get())).endswith(b"ok")

    play(story)


def test_without_its_secret_nobody_wakes_it(play):
    async def story(service):
        await service.endpoint(wake=AUTH)
        answer = await service.ask(get("/", TOKEN))
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"the Secret wake has no key token" in answer
        assert (await service.status())["demand"]["number"] == 1

    play(story)


def test_a_header_of_our_own_leaves_authorization_to_the_service(play):
    async def story(service):
        await with_token(service)
        headers = ("Authorization: Bearer the-services-own", "Bidplane-Wake-Token: sesame")
        asked = asyncio.create_task(service.ask(get("/", *headers)))
        await service.demanded(awake=True)
        asked.cancel()

    play(story)
