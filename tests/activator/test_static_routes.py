"""Requests that are no use of a service: answered for it while it sleeps, and never waking it."""

from __future__ import annotations

from .conftest import get, header

HEALTH = {"routes": [{"pathPrefixes": ["/fine"]}], "status": 202, "body": "asleep"}
CLOSED = {
    "routes": [{"pathPrefixes": ["/"], "headers": [{"name": "X-Closed"}]}],
    "status": 503,
    "contentType": "text/html",
    "headers": {"X-Why": "closed"},
    "always": True,
}


def test_they_are_answered_while_it_sleeps_and_wake_nothing(play):
    async def story(service):
        await service.endpoint(staticRoutes=[HEALTH, CLOSED])
        answer = await service.ask(get("/fine/x"))
        assert answer.startswith(b"HTTP/1.1 202 ")
        assert answer.endswith(b"asleep")
        closed = await service.ask(get("/any", "X-Closed: 1"))
        assert closed.startswith(b"HTTP/1.1 503 ")
        assert (header(closed, "Content-Type"), header(closed, "X-Why")) == ("text/html", "closed")
        # The first that matches counts.
        both = await service.ask(get("/fine", "X-Closed: 1"))
        assert both.startswith(b"HTTP/1.1 202 ")
        assert (await service.status())["demand"]["number"] == 1

    play(story)


def test_while_it_is_awake_they_pass_and_are_no_use_of_it(play):
    async def story(service):
        rate = {"perSecond": 1, "windowSeconds": 60}
        await service.awake(
            idleSeconds=30, staticRoutes=[HEALTH, CLOSED], maxReplicas=2, targetRate=rate
        )
        service.pass_time(20)
        assert (await service.ask(get("/fine"))).endswith(b"ok")
        assert (await service.ask(get("/any", "X-Closed: 1"))).startswith(b"HTTP/1.1 503 ")
        assert (
            service.live()._load.fill(service.live().demand, 0, now=service.clock.now()).recent == 0
        )
        service.pass_time(11)
        await service.demanded(awake=False)
        assert len(service.requests) == 1

    play(story)
