"""Replies: whole, in chunks, refused, and to readers that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import msgspec

from bidplane.errors import NotFound
from bidplane.http import replies
from bidplane.http.asgi import Message, Receive, Send
from bidplane.http.replies import Reply, answer, json_reply, refusal, send_reply, text_reply
from bidplane.http.request import Request
from bidplane.wire import status

from .requests import Sent, body_of, scope_of


def sent(reply: Reply, *warnings: str) -> Sent:
    send = Sent()
    asyncio.run(send_reply(send, reply, warnings))
    return send


def test_a_whole_reply_has_its_length() -> None:
    reply = sent(text_reply("é"), 'it is "old"\nand slow', "twice", "twice")
    assert (reply.code, reply.body) == (200, "é".encode())
    assert reply.headers[b"content-length"] == b"2"
    warnings = [value for key, value in reply.messages[0]["headers"] if key == b"warning"]
    assert warnings == [b'299 - "it is \\"old\\" and slow"', b'299 - "twice"']


def test_a_large_body_is_handed_over_in_pieces() -> None:
    reply = sent(Reply(b"x" * (600 << 10)))
    assert [len(message["body"]) for message in reply.messages[1:]] == [
        256 << 10,
        256 << 10,
        88 << 10,
        0,
    ]


def test_a_refusal_is_a_status() -> None:
    reply = refusal(status.refuse(429, "TooManyRequests", "later", retry_after=3))
    body = msgspec.json.decode(reply.body)
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", 429)
    assert (b"retry-after", b"3") in reply.headers


def asked(work: Awaitable[Reply], send: Send, receive: Receive | None = None) -> None:
    async def whole() -> None:
        async with asyncio.timeout(5):
            await answer(Request(scope_of("/"), receive or body_of()), send, work)

    asyncio.run(whole())


async def _refuse() -> Reply:
    raise NotFound("there is no such thing")


async def _leave() -> Reply:
    return json_reply({"size": len(await Request(scope_of("/"), body_of()).body())})


def test_an_error_is_answered_and_a_leaver_is_not() -> None:
    send = Sent()
    asked(_refuse(), send)
    assert send.code == 404
    assert msgspec.json.decode(send.body)["message"] == "there is no such thing"
    send = Sent()
    asked(_leave(), send)
    assert send.messages == []


def test_chunks_end_with_their_reader() -> None:
    """A server takes data for a client that is gone: only `receive` tells."""
    sent_count, closed = 0, []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"line\n"
        finally:
            closed.append(True)

    async def reply() -> Reply:
        return Reply(content_type=replies.LINES, chunks=endless())

    async def send(message: Message) -> None:
        nonlocal sent_count
        sent_count += 1
        await asyncio.sleep(0)

    async def receive() -> Message:
        while sent_count < 5:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    asked(reply(), send, receive)
    assert 5 <= sent_count < 10
    assert closed == [True]
