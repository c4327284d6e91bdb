"""
Clients that other people wrote, in front of a service that sleeps: the SDKs of OpenAI and of
Anthropic, `websockets`, curl and wrk.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from .conftest import OK, Service, get, header

pytestmark = pytest.mark.slow

HOST = "llm.alice.localhost"
WORDS = ["Good", " morning", "."]
ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def _chunk(text: str | None, reason: str | None = None) -> bytes:
    delta = {"content": text} if text is not None else {}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"


def _event(kind: str, **fields: object) -> bytes:
    data = json.dumps({"type": kind, **fields}).encode()
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
USAGE = {"input_tokens": 1, "output_tokens": 1}
OPENAI = [*map(_chunk, WORDS), _chunk(None, "stop"), b"data: [DONE]\n\n"]
ANTHROPIC = [
    _event("message_start", message={**MESSAGE, "usage": USAGE}),
    _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    *(
        _event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        for word in WORDS
    ),
    _event("content_block_stop", index=0),
    _event("message_delta", delta={"stop_reason": "end_turn"}, usage=USAGE),
    _event("message_stop"),
]


def stream_of(events: list[bytes], *, whole: bool = True) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    return head + b"Connection: close\r\n\r\n" + chunks + (b"0\r\n\r\n" if whole else b"")


async def ask_openai(service: Service, *, stream: bool = True) -> list[str]:
    base = f"http://127.0.0.1:{service.url[1]}/v1"
    async with openai.AsyncOpenAI(
        api_key="k", base_url=base, max_retries=0, default_headers={"Host": HOST}
    ) as client:
        if not stream:
            answer = await client.chat.completions.create(**ASKED)
            return [answer.choices[0].message.content]
        chunks = await client.chat.completions.create(**ASKED, stream=True)
        return [chunk.choices[0].delta.content async for chunk in chunks]


async def ask_anthropic(service: Service, *, stream: bool = True) -> list[str]:
    base = f"http://127.0.0.1:{service.url[1]}"
    async with anthropic.AsyncAnthropic(
        api_key="k", base_url=base, max_retries=0, default_headers={"Host": HOST}
    ) as client:
        if not stream:
            message = await client.messages.create(**ASKED, max_tokens=9)
            return [block.text for block in message.content]
        async with client.messages.stream(**ASKED, max_tokens=9) as events:
            return [text async for text in events.text_stream]


SDKS = {
    "openai": (ask_openai, OPENAI, openai.APIError),
    "anthropic": (ask_anthropic, ANTHROPIC, anthropic.APIError),
}


async def held_whole(service: Service) -> None:
    """Wait until a request is held, with its body: that says if a stream is asked for."""
    await service.held(1)
    while not all(request.is_complete for request, _ in service.live().holds.since()):
        await asyncio.sleep(0.005)


@pytest.fixture(params=SDKS)
def sdk(request):
    return SDKS[request.param]


@pytest.mark.parametrize("beats", [0, 3])
def test_a_stream_of_an_sdk_is_held_and_read_whole(play, sdk, beats):
    ask, events, _ = sdk

    async def story(service):
        service.answers = lambda head: stream_of(events)
        await service.endpoint()
        asked = asyncio.create_task(ask(service))
        await held_whole(service)
        for _ in range(beats):
            service.pass_time(11)
        await service.start_pod()
        await service.ready(await service.demanded(awake=True))
        assert "".join(text or "" for text in await asked) == "".join(WORDS)

    play(story)


@pytest.mark.parametrize("beats", [0, 1])
def test_an_sdk_raises_if_the_service_cannot_start(play, sdk, beats):
    ask, _, raised = sdk

    async def story(service):
        await service.endpoint()
        asked = asyncio.create_task(ask(service))
        await held_whole(service)
        for _ in range(beats):
            service.pass_time(11)
        number = await service.demanded(awake=True)
        problem = {"failed": True, "reason": "WalletTooSmall", "message": "it has 0.10 credits"}
        await service.says(answers=number, phase="Waking", **problem)
        with pytest.raises(raised) as problem:
            await asked
        text = str(problem.value)
        assert "the service cannot start: WalletTooSmall: it has 0.10 credits" in text
        assert '"' not in text, "JSON within the message"
        assert beats or problem.value.response.status_code == 503

    play(story)


@pytest.mark.parametrize("status", [429, 503, 504])
def test_an_sdks_exception_has_the_reason(play, sdk, status):
    """For requests that ask for no stream, too: the path tells the protocol."""
    ask, _, raised = sdk

    async def story(service):
        await service.endpoint(maxHeld=1, holdSeconds=100)
        if status == 429:
            _, first = await service.open(get())
            await service.held(1)
        asked = asyncio.create_task(ask(service, stream=False))
        if status != 429:
            await held_whole(service)
            number = await service.demanded(awake=True)
            problem = {"reason": "WalletTooSmall", "message": "it has 0.10 credits"}
            await service.says(answers=number, phase="Waking", failed=status == 503, **problem)
        if status == 504:
            service.pass_time(101)
        with pytest.raises(raised) as error:
            await asked
        assert REASONS[status] in str(error.value)
        response = error.value.response
        assert response.status_code == status
        assert response.headers["Content-Type"] == "application/json"
        assert int(response.headers["Retry-After"]) > 0
        if status == 429:
            first.close()

    play(story)


REASONS = {
    429: "the service is waking, and 1 requests wait for it already",
    503: "the service cannot start: WalletTooSmall: it has 0.10 credits",
    504: "the service did not wake within 100 seconds: it has 0.10 credits",
}


@pytest.mark.parametrize("beats", [0, 1])
def test_an_sdk_raises_if_a_stream_breaks_off(play, sdk, beats):
    """Not even the last event is there: a clean end would look whole to an SDK."""
    ask, events, raised = sdk

    async def story(service):
        service.answers = lambda head: stream_of(events[:3], whole=False)
        pod = await asyncio.start_server(once(service), "127.0.0.1", 0)
        service.port = pod.sockets[0].getsockname()[1]
        await service.endpoint()
        asked = asyncio.create_task(ask(service))
        await held_whole(service)
        for _ in range(beats):
            service.pass_time(11)
        await service.ready(await service.demanded(awake=True))
        # The SDKs let the errors of their HTTP client through while a stream is read.
        with pytest.raises((raised, httpx2.TransportError)):
            await asked
        pod.close()

    play(story)


def once(service):
    """A pod that answers one request, and ends the connection."""

    async def answer(reader, writer):
        if await reader.read(1 << 16):
            writer.write(service.answers(b""))
            await writer.drain()
        writer.close()

    return answer


def test_a_websocket_is_held_and_then_passes_both_ways(play):
    async def story(service):
        async def echo(socket):
            async for message in socket:
                if message == "end":
                    await socket.close(4001, "as asked")
                    return
                await socket.send(message)

        async with serve(echo, "127.0.0.1", 0, subprotocols=["chat"]) as pod:
            service.port = pod.sockets[0].getsockname()[1]
            await service.endpoint()
            url = f"ws://{HOST}:{service.url[1]}/ws"

            async def talk():
                async with connect(
                    url, host="127.0.0.1", port=service.url[1], subprotocols=["chat"]
                ) as socket:
                    assert socket.subprotocol == "chat"
                    assert socket.response.headers["X-KEDA-HTTP-Cold-Start"] == "true"
                    for message in ("text", b"bytes", "x" * 500_000, ""):
                        await socket.send(message)
                        assert await socket.recv() == message
                    await (await socket.ping())
                    await socket.send("end")
                    with pytest.raises(ConnectionClosed):
                        await socket.recv()
                    return socket.close_code, socket.close_reason

            talking = asyncio.create_task(talk())
            await service.held(1)
            await service.ready(await service.demanded(awake=True))
            assert await talking == (4001, "as asked")

    play(story)


async def run(*command: str) -> bytes:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_waits_and_is_told_that_it_was_cold(play):
    async def story(service):
        await service.endpoint()
        url = f"http://127.0.0.1:{service.url[1]}/"
        command = ("curl", "-sS", "-i", "-m", "25", "-H", f"Host: {HOST}", url)
        asked = asyncio.create_task(run(*command))
        await service.held(1)
        await service.start_pod()
        await service.ready(await service.demanded(awake=True))
        answer = await asked
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert header(answer, "X-KEDA-HTTP-Cold-Start") == "true"
        assert float(header(answer, "Bidplane-Cold-Start-Seconds")) >= 0
        assert header(await run(*command), "X-KEDA-HTTP-Cold-Start") == "false"

    play(story)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
def test_wrk_sees_no_error_across_a_wake(play):
    async def story(service):
        service.answers = lambda head: OK
        await service.endpoint()
        url = f"http://127.0.0.1:{service.url[1]}/"
        options = ("-t1", "-c32", "-d2s", "--timeout", "20s", "-H", f"Host: {HOST}")
        load = asyncio.create_task(run("wrk", *options, url))
        await service.held(32)
        await service.start_pod()
        await service.ready(await service.demanded(awake=True))
        report = (await load).decode()
        assert "Non-2xx" not in report
        assert "Socket errors" not in report
        assert len(service.requests) > 32, report

    play(story)
