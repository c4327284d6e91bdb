"""Several activators in front of one service: they wake it, and let it sleep, together."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bidplane.activator.activator import Activator
from bidplane.activator.joined import JoinedEndpoint
from bidplane.activator.members import MISSED_COUNT, Membership
from bidplane.errors import ApiError
from bidplane.http.proxy.pool import BackendPool
from bidplane.http.proxy.server import ProxyServer, Site

from .conftest import OK, SPACE, Service, get, header


class Peer:
    """One of several activators."""

    def __init__(self, service: Service, name: str, size: int) -> None:
        self.group = Membership(service.host, name, size, clock=service.clock)
        self.pool = BackendPool()
        self.activator = Activator(service.host, self.pool, clock=service.clock, group=self.group)
        self.server = ProxyServer(Site(self.activator.dispatch), self.pool)
        self.task = asyncio.create_task(self.activator.run())
        self.group.changed = self.activator.tick

    async def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = listener.getsockname()
        await self.server.start(listener)
        await self.group.beat()

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.url)
        writer.write(request)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    def live(self, name: str = "llm") -> JoinedEndpoint:
        live = self.activator._live[SPACE, name]
        assert isinstance(live, JoinedEndpoint)
        return live

    async def kill(self) -> None:
        await self.server.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
def play_joined(play):
    """Play a story with a service and some activators; the first of them leads."""

    def play_with(story, count=2):
        async def whole(service):
            await service.close_activator()
            peers = [Peer(service, f"activator-{n}", count) for n in range(count)]
            for peer in peers:
                await peer.start()
            for peer in peers:
                await peer.group.beat()
            try:
                await story(service, *peers)
            finally:
                for peer in peers:
                    await peer.kill()

        play(whole)

    return play_with


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def tick(service, peers, seconds):
    service.clock.ahead += seconds
    for peer in peers:
        peer.activator.tick()


async def sleeps(service, peers, seconds=0.0):
    """Let time pass until the demand is to sleep; return its number."""
    service.clock.ahead += seconds
    while True:
        tick(service, peers, 1)
        demand = (await service.status())["demand"]
        if not demand["awake"]:
            return demand["number"]
        await asyncio.sleep(0.01)


async def is_known(service, *peers, name="llm"):
    await until(lambda: all((SPACE, name) in p.activator._live for p in peers))
    await until(lambda: all(p.live(name)._is_known for p in peers))


async def awake(service, *peers, **spec):
    await service.start_pod()
    await service.endpoint(phase="Ready", **spec)
    await is_known(service, *peers)
    await service.ready(await service.demanded(awake=True))
    await until(lambda: all(peer.live().is_open for peer in peers))


def test_a_request_held_by_any_wakes_the_service_for_all(play_joined):
    async def story(service, leader, follower):
        assert leader.group.leads
        assert not follower.group.leads
        await service.endpoint()
        await is_known(service, leader, follower)
        asked = [asyncio.create_task(follower.ask(get(f"/{n}"))) for n in range(3)]
        number = await service.demanded(awake=True)
        assert number == 2
        await until(lambda: len(follower.live().holds) == 3)
        asked.append(asyncio.create_task(leader.ask(get("/own"))))
        await until(lambda: len(leader.live().holds) == 1)
        await service.start_pod()
        await service.ready(number)
        answers = await asyncio.gather(*asked)
        assert all(answer.endswith(b"ok") for answer in answers), answers
        assert {header(a, "X-KEDA-HTTP-Cold-Start") for a in answers} == {"true"}
        status = await service.status()
        assert status["demand"]["number"] == 2
        while "coldStart" not in await service.status():
            await asyncio.sleep(0.005)

    play_joined(story)


def test_a_request_in_flight_at_any_keeps_it_awake(play_joined):
    async def story(service, leader, follower):
        release = asyncio.Event()

        async def slow(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            await release.wait()
            writer.write(OK)
            await writer.drain()
            writer.close()

        pod = await asyncio.start_server(slow, "127.0.0.1", 0)
        service.port = pod.sockets[0].getsockname()[1]
        service.start_pod = lambda: asyncio.sleep(0)
        await awake(service, leader, follower, idleSeconds=100)
        asked = asyncio.create_task(follower.ask(get()))
        await until(lambda: follower.live()._in_flight)
        assert not follower.live()._written.in_flight, "the leader has not heard of it"
        tick(service, [leader], 101)  # so it proposes to sleep
        await until(lambda: follower.live()._voted == 1)
        assert not follower.live()._agreed
        await until(lambda: not leader.live().demand.proposes)
        await until(lambda: leader.live().is_open)
        assert follower.live().is_open
        tick(service, [leader, follower], 1000)
        await asyncio.sleep(0.05)
        assert (await service.status())["demand"]["awake"]
        release.set()
        assert (await asked).endswith(b"ok")
        assert await sleeps(service, [leader, follower], 101) == 2
        assert not follower.live().is_open
        pod.close()

    play_joined(story)


def test_a_request_that_comes_amid_a_proposal_is_held_and_then_served(play_joined):
    async def story(service, leader, follower):
        await awake(service, leader, follower, idleSeconds=100)
        written = follower.activator._write_joined

        async def late(*arguments):
            await gate.wait()
            return await written(*arguments)

        gate = asyncio.Event()
        follower.activator._write_joined = late
        tick(service, [leader], 101)
        await until(lambda: follower.live()._voted == 1)
        assert follower.live()._agreed
        assert not follower.live().is_open
        asked = asyncio.create_task(follower.ask(get()))
        await until(lambda: len(follower.live().holds) == 1)
        gate.set()
        assert (await asked).endswith(b"ok")
        demand = (await service.status())["demand"]
        assert (demand["number"], demand["awake"]) == (1, True), "nothing was put to sleep"

    play_joined(story)


def test_another_leads_when_the_leader_is_gone_and_what_it_holds_is_served(play_joined):
    async def story(service, leader, follower):
        await service.endpoint()
        await is_known(service, leader, follower)
        await leader.kill()
        asked = asyncio.create_task(follower.ask(get()))
        await until(lambda: len(follower.live().holds) == 1)
        await until(lambda: follower.live()._written.wakes == 1)
        for _ in range(MISSED_COUNT):
            assert not follower.group.leads
            await follower.group.beat()
        await follower.group.beat()
        assert follower.group.leads
        number = await service.demanded(awake=True)
        await service.start_pod()
        await service.ready(number)
        assert (await asked).endswith(b"ok")
        # Nobody waits for the answer of one that is gone.
        assert follower.group.counts(leader.group.name, leader.group.life)
        await follower.group.beat()
        await follower.group.beat()
        assert not follower.group.counts(leader.group.name, leader.group.life)
        assert await sleeps(service, [follower], 301) == number + 1

    play_joined(story)


def test_one_that_starts_again_leads_at_once(play_joined):
    async def story(service, leader, follower):
        await leader.kill()
        again = Peer(service, leader.group.name, 2)
        await again.start()
        assert again.group.leads
        await follower.group.beat()
        assert not follower.group.leads
        await again.kill()

    play_joined(story)


def test_one_that_ends_gives_up_the_lead(play_joined):
    async def story(service, leader, follower):
        running = asyncio.create_task(leader.group.run())
        await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await follower.group.beat()
        assert follower.group.leads
        assert not follower.group.others

    play_joined(story)


def test_an_outage_of_the_host_ends_nobody(play_joined):
    async def story(service, leader, follower):
        real, service.host.list = service.host.list, None

        async def fails(*arguments, **options):
            raise ApiError("down")

        service.host.list = fails
        for _ in range(3 * MISSED_COUNT):
            await follower.group.beat()
        service.host.list = real
        await follower.group.beat()
        assert follower.group.others == {leader.group.name}
        assert not follower.group.leads

    play_joined(story)


def test_wakes_are_bounded_for_all_together(play_joined):
    async def story(service, leader, follower):
        peers = [leader, follower]
        await service.endpoint(onCold="reject", wake={"perHour": 2}, idleSeconds=1, holdSeconds=1)
        await is_known(service, *peers)
        for peer in (leader, follower):
            assert (await peer.ask(get())).startswith(b"HTTP/1.1 503 ")
            await service.demanded(awake=True)
            await sleeps(service, peers, 2)
            await until(lambda: not any(peer.live().demand.awake for peer in peers))
        await follower.ask(get())  # the leader says no, once it has heard of it
        await until(lambda: follower.live().demand.next_wake)
        answer = await follower.ask(get())
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert 1600 <= int(header(answer, "Retry-After")) <= 1800
        assert not (await service.status())["demand"]["awake"]

    play_joined(story)


def test_a_life_counts_until_it_is_known_to_be_over(play_joined):
    async def story(service, leader, follower):
        await leader.kill()
        old = leader.group
        for _ in range(MISSED_COUNT + 1):
            await follower.group.beat()
        assert follower.group.counts(old.name, old.life), "so far nobody asked"
        again = Membership(service.host, old.name, 2, clock=service.clock)
        assert follower.group.counts(again.name, again.life), "its Lease may be there already"
        await follower.group.beat()
        await again.beat()
        assert follower.group.counts(again.name, again.life)
        await follower.group.beat()
        assert follower.group.counts(again.name, again.life)
        assert not follower.group.counts(old.name, old.life)

    play_joined(story)
