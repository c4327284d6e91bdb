"""The client: answers, streams, time-outs, retries, and errors that are ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bidplane.errors import Conflict, Unavailable
from bidplane.http.asgi import App, Receive, Scope, Send
from bidplane.http.client.caller import (
    BlockingCaller,
    HttpCaller,
    NoAnswer,
    UnreadableUrl,
    refusal_in,
    trust,
    trust_anybody,
)
from bidplane.http.replies import Reply, answer, json_reply, text_reply
from bidplane.http.request import Request
from bidplane.http.server.serve import bind, serve
from bidplane.runtime.identity import certificates
from bidplane.runtime.identity.certificates import Certificates
from bidplane.wire import status

PATIENCE = 20.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder: Path = tmp_path_factory.mktemp("certificates")
    return certificates.ensure(folder, hosts=["127.0.0.1"], now=time.time())


async def _answer(request: Request) -> Reply:
    match request.parts:
        case ["echo"]:
            said = await request.body()
            return json_reply([request.method, request.query_text, request.bearer, said.decode()])
        case ["lines"]:
            return Reply(chunks=_lines())
        case ["taken"]:
            raise status.refuse(409, "Conflict", "somebody was faster")
        case ["silence"]:
            await asyncio.sleep(PATIENCE)
    return text_reply("no such path", 404)


async def _lines() -> AsyncIterator[bytes]:
    yield b"one\ntw"
    yield b"o\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    await answer(request, send, _answer(request))


@contextlib.asynccontextmanager
async def serving(files: Certificates, app: App = app) -> AsyncIterator[str]:
    listener = bind("127.0.0.1", 0)
    task = asyncio.create_task(serve(app, listener, files))
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()


def play(files: Certificates, story: Callable[[str], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE), serving(files) as url:
            await story(url)

    asyncio.run(whole())


def test_calls(files: Certificates) -> None:
    tokens = iter(["first", "second", "third", "fourth"])

    async def story(url: str) -> None:
        trusted = trust(ca_file=str(files.ca))
        async with HttpCaller(url, trust=trusted, token=lambda: next(tokens)) as caller:
            reply = await caller.call("POST", "/echo", params={"a": "1"}, body=b"hello")
            assert (reply.code, reply.text) == (200, '["POST","a=1","first","hello"]')
            assert reply.headers["content-type"] == "application/json"
            assert b"second" in (await caller.call("GET", f"{url}/echo")).body, "renewed"
            assert (await caller.call("GET", "/none")).code == 404
            with pytest.raises(Conflict, match="somebody was faster"):
                (await caller.call("GET", "/taken")).accepted()

    play(files, story)


def test_streams(files: Certificates) -> None:
    async def story(url: str) -> None:
        async with HttpCaller(url, trust=trust(ca_file=str(files.ca))) as caller:
            async with await caller.open("GET", "/lines", params=[("b", "2")]) as stream:
                assert [line async for line in stream.lines()] == ["one", "two"]
            async with await caller.open("GET", "/lines") as stream:
                assert b"".join([chunk async for chunk in stream.chunks()]) == b"one\ntwo\n"
            async with await caller.open("GET", "/taken") as stream:
                with pytest.raises(Conflict):
                    await stream.accepted()

    play(files, story)


def test_no_answer_is_unavailable(files: Certificates) -> None:
    async def story(url: str) -> None:
        async with HttpCaller(url) as caller:
            with pytest.raises(Unavailable, match="certificate"):
                await caller.call("GET", "/echo")
        async with HttpCaller(url, trust=trust_anybody()) as caller:
            assert (await caller.call("GET", "/echo")).code == 200
            with pytest.raises(NoAnswer) as late:
                await caller.call("GET", "/silence", seconds=0.05)
            assert late.value.timed_out
            with pytest.raises(NoAnswer) as late:
                await caller.open("GET", "/silence", idle_seconds=0.05)
            assert late.value.timed_out
            with pytest.raises(NoAnswer) as nobody:
                await caller.call("GET", "https://127.0.0.1:1/")
            assert not nobody.value.timed_out
            with pytest.raises(UnreadableUrl):
                await caller.call("GET", "https://127.0.0.1:x/")

    play(files, story)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_refused_connection_is_tried_again(
    files: Certificates, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(url: str) -> None:
        connect = asyncio.BaseEventLoop.create_connection
        attempts = 0

        async def refuse_first(loop: Any, *args: Any, **options: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise ConnectionRefusedError
            return await connect(loop, *args, **options)

        monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", refuse_first)
        async with HttpCaller(url, trust=trust(ca_file=str(files.ca)), retries=retries) as caller:
            if retries:
                assert (await caller.call("GET", "/echo")).code == 200
            else:
                with pytest.raises(NoAnswer):
                    await caller.call("GET", "/echo")
        assert attempts == 1 + retries

    play(files, story)


def test_commands_call_without_a_loop(files: Certificates) -> None:
    async def story(url: str) -> None:
        def command() -> None:
            with BlockingCaller(url, trust=trust(ca_file=str(files.ca)), token="t") as caller:
                assert caller.call("PUT", "/echo", body=b"x").text == '["PUT","","t","x"]'
                assert list(caller.lines("GET", "/lines")) == ["one", "two"]
                with pytest.raises(Conflict):
                    list(caller.lines("GET", "/taken"))

        await asyncio.to_thread(command)

    play(files, story)


def test_a_refusal_that_is_no_status_is_quoted() -> None:
    assert str(refusal_in(502, b"<html>bad gateway")) == "<html>bad gateway"
    assert isinstance(refusal_in(502, b""), Unavailable)
    assert str(refusal_in(502, b"")) == "HTTP 502"
    assert str(refusal_in(400, b"[1]")) == "[1]"
