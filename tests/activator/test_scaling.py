"""The load that an activator reports, and the pods that it lets drain."""

from __future__ import annotations

import asyncio

from .conftest import get, header

RATE = {"perSecond": 1, "windowSeconds": 10}


async def reported(service, **fields):
    """Wait until the demand has these fields."""
    while True:
        demand = (await service.status())["demand"]
        if all(demand.get(name, 0) == value for name, value in fields.items()):
            return demand
        await asyncio.sleep(0.01)


def test_a_load_that_needs_more_replicas_is_reported_at_the_next_tick(play):
    async def story(service):
        await service.endpoint(maxReplicas=3, targetConcurrency=2)
        asked = [asyncio.create_task(service.ask(get())) for _ in range(5)]
        await service.held(5)
        service.activator.tick()
        await reported(service, concurrency=5)
        for task in asked:
            task.cancel()

    play(story)


def test_the_rate_is_counted_and_its_window_known_once_it_is_whole(play):
    async def story(service):
        await service.awake(maxReplicas=3, targetRate=RATE, idleSeconds=600)
        for _ in range(11):
            await service.ask(get())
        service.activator.tick()
        demand = await reported(service, recent=11)
        assert not demand["wholeWindow"]
        service.pass_time(11)
        demand = await reported(service, recent=0)
        assert demand["wholeWindow"]

    play(story)


def test_a_drained_pod_gets_nothing_new_and_is_free_once_it_answered(play):
    async def story(service):
        release = asyncio.Event()

        async def slow(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            await release.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nslow")
            writer.close()

        await service.start_pod()
        server = await asyncio.start_server(slow, "127.0.0.1", 0)
        await service.endpoint(phase="Ready", maxReplicas=2, targetConcurrency=1)
        number = await service.demanded(awake=True)
        ports = {"fast": service.port, "slow": server.sockets[0].getsockname()[1]}
        backends = [
            {"pod": pod, "address": "127.0.0.1", "port": port, "ready": True}
            for pod, port in ports.items()
        ]
        await service.says(phase="Ready", answers=number, backends=backends)
        while len(service.live()._open) < 2:
            await asyncio.sleep(0.005)
        asked = [asyncio.create_task(service.ask(get())) for _ in range(2)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        (waiting,) = [task for task in asked if not task.done()]
        await service.says(drain={"number": 1, "pods": ["slow"], "removed": []})
        for _ in range(4):
            assert (await service.ask(get())).endswith(b"ok")
        service.activator.tick()
        demand = await reported(service, drained=1)
        assert not demand["freePods"]
        release.set()
        assert (await waiting).endswith(b"slow")
        service.activator.tick()
        await reported(service, drained=1, freePods=["slow"])
        # It is needed again.
        await service.says(drain={"number": 2, "pods": [], "removed": []})
        while len(service.live()._open) < 2:
            await asyncio.sleep(0.005)
        server.close()

    play(story)


def test_one_that_is_always_awake_wakes_by_itself_and_stays(play):
    async def story(service):
        await service.endpoint(alwaysAwake=True, idleSeconds=1)
        await service.demanded(awake=True)
        service.pass_time(1000)
        assert (await service.status())["demand"]["awake"]

    play(story)


def test_a_new_one_stays_awake_for_its_first_seconds(play):
    async def story(service):
        await service.awake(initialSeconds=100, idleSeconds=1)
        service.pass_time(50)
        assert (await service.status())["demand"]["awake"]
        service.pass_time(51)
        await service.demanded(awake=False)

    play(story)


def test_an_answer_that_does_not_begin_in_time_is_given_up(play):
    async def story(service):
        release = asyncio.Event()

        async def slow(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            await release.wait()
            writer.close()

        server = await asyncio.start_server(slow, "127.0.0.1", 0)
        service.port = server.sockets[0].getsockname()[1]
        await service.endpoint(phase="Ready", responseSeconds=5)
        await service.ready(await service.demanded(awake=True))
        while not service.live().is_open:
            await asyncio.sleep(0.005)
        asked = asyncio.create_task(service.ask(get()))
        live = service.live()
        while not any(request.backend for request in live._in_flight):
            await asyncio.sleep(0.005)
        live.tick(100.0)
        live.tick(104.0)
        assert not asked.done()
        live.tick(105.0)
        answer = await asked
        assert answer.startswith(b"HTTP/1.1 504 ")
        assert b"within 5 seconds" in answer
        assert not live._in_flight
        release.set()
        server.close()

    play(story)


def test_a_placeholder_has_headers_of_its_own(play):
    async def story(service):
        placeholder = {"status": 202, "body": "soon", "headers": {"X-State": "waking"}}
        await service.endpoint(onCold="placeholder", placeholder=placeholder)
        answer = await service.ask(get())
        assert answer.startswith(b"HTTP/1.1 202 ")
        assert header(answer, "X-State") == "waking"

    play(story)
