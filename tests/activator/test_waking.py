"""Who may wake a service, what counts as use, and when it sleeps."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.api import labels
from bidplane.api.kinds import ENDPOINT

from .conftest import SPACE, get, header

PROBES = {
    "head": get("/", method="HEAD"),
    "preflight": get("/", "Origin: http://b", method="OPTIONS"),
    "health": get("/healthz"),
    "kubelet": get("/", "User-Agent: kube-probe/1.34"),
    "preview": get("/", "User-Agent: Slackbot-LinkExpanding 1.0"),
    "scanner": get("/.env"),
    "wordpress": get("/wp-login.php"),
    "icon": get("/favicon.ico"),
    "other method": get("/", method="PROPFIND"),
}


@pytest.mark.parametrize("name", PROBES)
def test_probes_wake_nothing(play, name):
    async def story(service):
        await service.endpoint()
        answer = await service.ask(PROBES[name])
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert header(answer, "Retry-After")
        demand = (await service.status())["demand"]
        assert (demand["number"], demand.get("awake", False)) == (1, False)

    play(story)


def test_scanners_of_unlisted_paths_wake_nothing(play):
    async def story(service):
        await service.endpoint(wake={"paths": ["/v1"]})
        reader, writer = await service.open(b"")
        for number in range(10_000):
            request = get(f"/admin/{number}").replace(b"Connection: close\r\n", b"")
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            await reader.readexactly(int(header(head, "Content-Length")))
        for path in ("/v10", "/v1x/y", "/V1"):
            assert (await service.ask(get(path))).startswith(b"HTTP/1.1 503 ")
        assert (await service.status())["demand"]["number"] == 1
        asked = asyncio.create_task(service.ask(get("/v1/models")))
        await service.demanded(awake=True)
        asked.cancel()

    play(story)


def test_wakes_are_bounded_by_the_hour(play):
    async def story(service):
        await service.endpoint(onCold="reject", wake={"perHour": 2}, idleSeconds=1, holdSeconds=1)
        for _ in range(2):
            assert (await service.ask(get())).startswith(b"HTTP/1.1 503 ")
            await service.demanded(awake=True)
            service.pass_time(2)
            await service.demanded(awake=False)
        answer = await service.ask(get())
        assert answer.startswith(b"HTTP/1.1 429 ")
        wait = int(header(answer, "Retry-After"))
        assert 1700 <= wait <= 1800
        service.clock.ahead += wait - 5
        assert (await service.ask(get())).startswith(b"HTTP/1.1 429 ")
        service.clock.ahead += 5
        assert (await service.ask(get())).startswith(b"HTTP/1.1 503 ")

    play(story)


def test_a_service_sleeps_after_its_window_and_wakes_again(play):
    async def story(service):
        await service.awake(idleSeconds=100)
        for number in (1, 3, 5):
            service.pass_time(99)
            assert service.live().demand.awake
            assert (await service.ask(get())).endswith(b"ok")
            service.pass_time(99)
            assert service.live().demand.number == number
            service.pass_time(2)
            assert await service.demanded(awake=False) == number + 1
            assert not service.live().is_open
            await service.says(phase="Asleep", answers=number + 1, backends=[])
            asked = asyncio.create_task(service.ask(get()))
            await service.ready(await service.demanded(awake=True))
            assert (await asked).endswith(b"ok")

    play(story)


def test_what_does_not_count_as_use_does_not_keep_it_awake(play):
    async def story(service):
        await service.awake(idleSeconds=100, ignorePaths=["/assets"])
        for path in ("/assets/a.js", "/healthz"):
            service.pass_time(30)
            assert (await service.ask(get(path))).endswith(b"ok")
        service.pass_time(30)
        assert (await service.ask(get(method="HEAD"))).startswith(b"HTTP/1.1 200")
        assert service.live().demand.awake
        service.pass_time(11)
        await service.demanded(awake=False)

    play(story)


def test_a_request_in_flight_keeps_it_awake(play):
    async def story(service):
        service.answers = lambda head: b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha"
        await service.awake(idleSeconds=100)
        reader, writer = await service.open(get())
        await reader.readuntil(b"\r\n\r\n")
        service.pass_time(10_000)
        assert service.live().demand.awake
        writer.close()
        while service.live()._in_flight:
            await asyncio.sleep(0.005)
        service.pass_time(99)
        assert service.live().demand.awake, "the window begins with the request's end"
        service.pass_time(2)
        await service.demanded(awake=False)

    play(story)


def test_an_idle_websocket_does_not_keep_it_awake(play):
    async def story(service):
        service.answers = lambda head: (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        await service.awake(idleSeconds=100)
        upgrade = ("Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
        request = get("/ws", *upgrade).replace(b"Connection: close", b"Connection: Upgrade")
        reader, _ = await service.open(request)
        await reader.readuntil(b"\r\n\r\n")
        (open_one,) = service.live()._in_flight
        service.clock.ahead += 1000
        service.activator.tick()
        assert service.live().demand.awake, "something passed a moment ago"
        open_one.backend.active_at -= 1000
        service.activator.tick()
        await service.demanded(awake=False)

    play(story)


def test_a_direct_service_does_not_sleep_by_what_the_activator_sees(play):
    async def story(service):
        await service.awake(idleSeconds=100, warmPath="direct")
        service.pass_time(10_000)
        assert service.live().demand.awake
        service.live().sleep()
        await service.demanded(awake=False)

    play(story)


def test_a_person_wakes_it_and_lets_it_sleep(play):
    async def story(service):
        async def ask_for(verb):
            note = {"metadata": {"annotations": {labels.ENDPOINT_REQUEST: verb}}}
            await service.host.patch(ENDPOINT, "llm", note, SPACE)

        await service.endpoint()
        await ask_for("wake 1")
        number = await service.demanded(awake=True)
        await service.start_pod()
        await service.ready(number)
        service.pass_time(200)
        assert service.live().demand.awake
        await ask_for("sleep 2")
        assert await service.demanded(awake=False) == number + 1

    play(story)


def test_a_start_that_nobody_waits_for_is_given_up(play):
    async def story(service):
        await service.endpoint(idleSeconds=10, holdSeconds=60)
        _, writer = await service.open(get())
        number = await service.demanded(awake=True)
        writer.close()
        await service.held(0)
        await service.says(phase="Waking", answers=number)
        service.pass_time(59)
        assert service.live().demand.awake, "the wake goes on without its client"
        service.pass_time(2)
        await service.demanded(awake=False)

    play(story)


def test_an_activator_that_starts_again_goes_on(play):
    async def story(service):
        from bidplane.activator.activator import Activator

        await service.awake()
        service._task.cancel()
        await asyncio.gather(service._task, return_exceptions=True)
        service.activator = Activator(service.host, service.pool, clock=service.clock)
        service._task = asyncio.create_task(service.activator.run())
        service.server.site.dispatch = service.activator.dispatch
        while not service.activator.is_synced or not service.live().is_open:
            await asyncio.sleep(0.005)
        assert service.live().demand.number == 1
        assert (await service.ask(get())).endswith(b"ok")

    play(story)
