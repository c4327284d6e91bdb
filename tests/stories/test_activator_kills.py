"""
An activator is killed with SIGKILL: its clients see a reset, never an answer cut short that looks
whole.

It runs in a process of its own, with real connections; the test is its clients and its pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import httpx2
import openai
import pytest

from bidplane.bench.support.activator_process import DOMAIN

pytestmark = pytest.mark.slow

WARM, ASLEEP = f"warm.{DOMAIN}", f"asleep-0.{DOMAIN}"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
PART = b"some of it"
BEGUN = {
    "length": HEAD + b"Content-Length: 100\r\n\r\n" + PART,
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\na\r\n" + PART + b"\r\n",
    "until close": HEAD + b"\r\n" + PART,
}


class Killable:
    """An activator process, and its pod, which begins answers and never ends them."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid, self.port = pid, port
        self.begun = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")  # a mere connection is a probe
            writer.write(self.begun)
            await reader.read()
        writer.close()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


Story = Callable[[Killable], Awaitable[None]]


@pytest.fixture
def play() -> Iterator[Callable[[Story], None]]:
    """Play a story with an activator that answers."""
    listener, pods = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    port, pod_port = listener.getsockname()[1], pods.getsockname()[1]
    module = ["-m", "bidplane.bench.support.activator_process"]
    process = subprocess.Popen(
        [sys.executable, *module, str(listener.fileno()), str(pod_port), "0", "1"],
        pass_fds=[listener.fileno()],
    )
    listener.close()  # only the activator's own: with it the address is gone

    async def whole(story: Story) -> None:
        site = Killable(process.pid, port)
        site.begun = HEAD + b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        async with asyncio.timeout(60):
            server = await asyncio.start_server(site.serve, sock=pods)
            while not (await once(site, WARM)).startswith(b"HTTP/1.1 200"):
                await asyncio.sleep(0.05)
            await story(site)
            server.close()

    try:
        yield lambda story: asyncio.run(whole(story))
    finally:
        process.kill()
        process.wait()


def request(host: str, *, version: str = "1.1") -> bytes:
    return f"GET / HTTP/{version}\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


async def once(site: Killable, host: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(request(host))
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("name", BEGUN)
def test_an_answer_that_had_begun_is_not_whole(play: Callable[[Story], None], name: str) -> None:
    async def story(site: Killable) -> None:
        site.begun = BEGUN[name]
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{site.port}") as client,
            client.stream("GET", "/", headers={"Host": WARM}) as answer,
        ):
            chunks = answer.aiter_raw()
            assert await anext(chunks) == PART
            site.kill()
            with pytest.raises(httpx2.TransportError):
                await anext(chunks)

    play(story)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("name", BEGUN)
def test_a_client_sees_a_reset(play: Callable[[Story], None], name: str, version: str) -> None:
    """A client of HTTP/1.0, and many a reader of events, takes any orderly end for the end."""

    async def story(site: Killable) -> None:
        site.begun = BEGUN[name]
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(request(WARM, version=version))
        await reader.readuntil(PART)
        site.kill()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

    play(story)


def test_a_websocket_sees_a_reset(play: Callable[[Story], None]) -> None:
    async def story(site: Killable) -> None:
        site.begun = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
        site.begun += b"Upgrade: websocket\r\n\r\n" + PART
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"
        head = f"GET / HTTP/1.1\r\nHost: {WARM}\r\nSec-WebSocket-Version: 13\r\n{upgrade}\r\n"
        writer.write(head.encode())
        await reader.readuntil(PART)
        site.kill()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

    play(story)


def test_a_held_request_sees_a_reset(play: Callable[[Story], None]) -> None:
    async def story(site: Killable) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(request(ASLEEP))
        answer = asyncio.create_task(reader.read())
        await asyncio.sleep(0.5)  # nothing tells from outside that it is held
        assert not answer.done()
        site.kill()
        with pytest.raises(ConnectionResetError):
            await answer
        writer.close()

    play(story)


def test_a_stream_of_the_openai_sdk_raises(play: Callable[[Story], None]) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    choice = {"index": 0, "delta": {"content": "Good"}, "finish_reason": None}
    event = b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"

    async def story(site: Killable) -> None:
        framing = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(event), event)
        site.begun = head + framing
        async with openai.AsyncOpenAI(
            api_key="k",
            base_url=f"http://127.0.0.1:{site.port}/v1",
            max_retries=0,
            default_headers={"Host": WARM},
        ) as client:
            stream = await client.chat.completions.create(model="m", messages=[], stream=True)
            first = await anext(stream)
            assert first.choices[0].delta.content == "Good"
            site.kill()
            with pytest.raises((openai.APIError, httpx2.TransportError)):
                await anext(stream)

    play(story)
