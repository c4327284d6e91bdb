"""
Sleep and wake over and over, with requests around every drain: none is lost or gets an error.

The test plays the controller and the node without mercy: the moment sleep is demanded, the pod and
all its connections are gone. In `make explore` it is 10,000 requests over 50 cycles.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from effort import effort

from .conftest import OK, get

CYCLES = effort(5, 50)
REQUESTS = effort(40, 200)  # in each cycle
NEAR = 6  # of them within 5 ms of the drain; with more there is always one in flight


class Pod:
    """A pod that is killed with its connections."""

    def __init__(self) -> None:
        self.writers: set[asyncio.StreamWriter] = set()
        self.answered = 0

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"POST"):
                    await reader.readexactly(3)
                await asyncio.sleep(0.003)
                writer.write(OK)
                self.answered += 1
        writer.close()

    def kill(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()


@pytest.mark.explored
@pytest.mark.parametrize("seed", [1])
def test_no_request_is_lost_around_a_drain(play, seed):
    async def control(service, pods):
        """Answer each demand, as controller and node do, only faster."""
        last = 0
        while True:
            demand = service.live().demand
            number = demand.number
            if number == last:
                await asyncio.sleep(0.0002)
                continue
            last = number
            if demand.awake:
                pods.append(Pod())
                service.port = await pods[-1].start()
                await service.ready(number)
            elif pods:
                pods[-1].kill()
                await service.says(phase="Asleep", answers=number, backends=[])

    async def story(service):
        dice, pods = random.Random(seed), []
        await service.endpoint(idleSeconds=10, wake={"perHour": 3600})
        controller = asyncio.create_task(control(service, pods))
        post = get("/", "Content-Length: 3", method="POST") + b"abc"

        async def ask(delay):
            await asyncio.sleep(delay)
            return await service.ask(dice.choice([get(), post]))

        amid = 0  # drains with requests on both sides
        for _ in range(CYCLES):
            early = [asyncio.create_task(ask(0)) for _ in range(REQUESTS - NEAR)]
            await asyncio.wait(early)
            near = [
                asyncio.create_task(ask(0.005 + dice.uniform(-0.005, 0.005))) for _ in range(NEAR)
            ]
            for _ in range(20):  # a window ends every time nothing is in flight
                before = service.live().demand.number
                service.pass_time(11)
                amid += service.live().demand.number > before
                await asyncio.sleep(0.0005)
            for answer in await asyncio.gather(*early, *near):
                assert answer.startswith(b"HTTP/1.1 200 OK"), answer
                assert answer.endswith(b"ok")
            assert not controller.done(), controller
            service.pass_time(3600)  # so that the rate of wakes does not matter
        controller.cancel()
        assert sum(pod.answered for pod in pods) == CYCLES * REQUESTS
        assert len(pods) >= CYCLES
        assert amid >= CYCLES / 2
        for pod in pods:
            pod.kill()

    play(story)
