"""Another service answers for one that takes too long to wake."""

from __future__ import annotations

import asyncio

from .conftest import get, header

FALLBACK = {"service": "cloud", "afterSeconds": 30}


async def asleep_with_fallback(service, **spec):
    await service.start_pod()  # it plays the fallback
    await service.endpoint(fallback=FALLBACK, **spec)
    pod = {"pod": "cloud-1", "address": "127.0.0.1", "port": service.port, "ready": True}
    await service.says(fallbacks=[pod])


def test_who_waited_so_long_is_answered_by_the_fallback_and_the_wake_goes_on(play):
    async def story(service):
        await asleep_with_fallback(service)
        asked = asyncio.create_task(service.ask(get("/one")))
        await service.held(1)
        service.pass_time(20)
        other = asyncio.create_task(service.ask(get("/two")))
        await service.held(2)
        service.pass_time(11)
        answer = await asked
        assert answer.endswith(b"ok")
        assert header(answer, "X-KEDA-HTTP-Cold-Start") == "true"
        assert float(header(answer, "Bidplane-Cold-Start-Seconds")) >= 30
        assert not other.done()
        assert len(service.live().holds) == 1
        demand = (await service.status())["demand"]
        assert (demand["number"], demand["awake"]) == (2, True)
        await service.ready(2)
        assert (await other).endswith(b"ok")
        assert [head.split(b" ")[1] for head in service.requests] == [b"/one", b"/two"]

    play(story)


def test_one_that_cannot_start_is_replaced_at_once(play):
    async def story(service):
        await asleep_with_fallback(service)
        asked = asyncio.create_task(service.ask(get()))
        number = await service.demanded(awake=True)
        await service.says(phase="Waking", answers=number, failed=True, reason="CrashLoopBackOff")
        assert (await asked).endswith(b"ok")
        assert (await service.ask(get())).endswith(b"ok")

    play(story)


def test_a_fallback_that_is_gone_is_said(play):
    async def story(service):
        await asleep_with_fallback(service)
        await service.stop_pod()
        asked = asyncio.create_task(service.ask(get()))
        await service.held(1)
        service.pass_time(31)
        answer = await asked
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"the fallback cannot be reached" in answer

    play(story)
