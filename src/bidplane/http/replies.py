"""
Replies: a body or chunks, a refusal as a `Status`, and sending that a stalled reader cannot hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec

from bidplane.errors import ApiError
from bidplane.http.asgi import Message, Send, while_connected
from bidplane.http.request import Disconnected, Request
from bidplane.wire import status

STALL_SECONDS = 60.0  # a connection that takes nothing for so long is half open
SMALL_BYTES = 16 << 10  # of a piece whose reader nobody waits for: most are this small
_WHOLE_BYTES = 256 << 10  # of a body that is handed to the connection at once
JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
LINES = b"application/x-ndjson"
encode = msgspec.json.Encoder().encode


class Reply:
    """
    A reply: a body, or `chunks` of one whose length is not known yet.

    Each chunk is made when the connection has taken the one before.
    """

    __slots__ = ("body", "chunks", "code", "headers")

    def __init__(
        self,
        body: bytes = b"",
        code: int = 200,
        content_type: bytes = JSON,
        chunks: AsyncIterator[bytes] | None = None,
    ) -> None:
        self.body, self.code, self.chunks = body, code, chunks
        self.headers = [(b"content-type", content_type)]


def json_reply(obj: Any, code: int = 200) -> Reply:
    return Reply(encode(obj), code)


def text_reply(text: str | bytes, code: int = 200) -> Reply:
    return Reply(text if isinstance(text, bytes) else text.encode(), code, TEXT)


def refusal(error: ApiError) -> Reply:
    """Return the reply to an error: its Status, with the headers of its code."""
    reply = json_reply(status.status(error), error.code)
    if isinstance(error, status.StatusError) and error.retry_after:
        reply.headers.append((b"retry-after", str(error.retry_after).encode()))
    return reply


async def send_reply(send: Send, reply: Reply, warnings: Iterable[str] = ()) -> None:
    headers = [*reply.headers]
    if reply.chunks is None:
        headers.append((b"content-length", str(len(reply.body)).encode()))
    headers += [(b"warning", _warning(text)) for text in dict.fromkeys(warnings)]
    await send({"type": "http.response.start", "status": reply.code, "headers": headers})
    if reply.chunks is not None:
        try:
            async for chunk in reply.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:  # at once when the reader is gone: a chunk may hold what others wait for
            if isinstance(reply.chunks, AsyncGenerator):
                await reply.chunks.aclose()
    body = reply.body
    if len(body) > _WHOLE_BYTES:  # in pieces: a reader that takes nothing has one of them waiting
        for start in range(0, len(body), _WHOLE_BYTES):
            chunk = body[start : start + _WHOLE_BYTES]
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        body = b""
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, code: int, reason: str, message: str) -> None:
    """Send a refusal as a Status, which every Kubernetes client understands."""
    await send_reply(send, refusal(status.refuse(code, reason, message)))


async def send_while_connected(request: Request, send: Send, reply: Reply) -> None:
    """Send a reply; one in chunks until its client disconnects."""
    if reply.chunks is None:
        await send_reply(send, reply)
    else:
        await while_connected(request.receive, send_reply(send, reply))


async def answer(request: Request, send: Send, work: Awaitable[Reply]) -> None:
    """Send the reply that `work` returns, or the Status of the `ApiError` that it raises."""
    try:
        reply = await work
    except Disconnected:
        return
    except ApiError as error:
        reply = refusal(error)
    await send_while_connected(request, send, reply)


async def bounded(request: Request, send: Send, reply: Reply, warnings: Iterable[str] = ()) -> None:
    """Send a reply; abort the connection when it stalls."""
    to = BoundedSend(send, request.abort, request.drained)
    try:
        await send_reply(to, reply, warnings)
    finally:
        to.end()


class BoundedSend:
    """
    `send` for a connection that keeps reading: a stalled one is aborted.

    One timer for the whole stream checks whether anything was taken since its last run: a timer for
    each message would cost as much as the message.
    """

    def __init__(
        self,
        send: Send,
        abort: Callable[[], None] = lambda: None,
        drained: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`drained` waits until the connection has taken a message that is not small."""
        self._send, self._abort, self._drained = send, abort, drained
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._sending = False
        self._sent_count = self._last_count = 0
        self._timer = self._loop.call_later(STALL_SECONDS, self._look)

    async def __call__(self, message: Message) -> None:
        self._sending = True
        await self._send(message)
        if self._drained is not None and len(message.get("body", b"")) >= SMALL_BYTES:
            await self._drained()
        self._sending = False
        self._sent_count += 1

    def _look(self) -> None:
        if self._sending and self._sent_count == self._last_count and self._task is not None:
            self._task.cancel()
            self._abort()  # its unsent bytes are dropped, too
            return
        self._last_count = self._sent_count
        self._timer = self._loop.call_later(STALL_SECONDS, self._look)

    def end(self) -> None:
        self._timer.cancel()


def _warning(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", " ")
    return f'299 - "{quoted}"'.encode("latin-1", "replace")
