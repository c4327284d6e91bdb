"""Answers without an end: watches and logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, MutableMapping
from typing import Any

from bidplane.errors import ApiError
from bidplane.plane.call import Call
from bidplane.plane.http import forms, podstreams
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import JSON, Answer, Request, Send, encode
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.get import get
from bidplane.plane.verbs.watch import Seen, Watch
from bidplane.wire import negotiate, status
from bidplane.wire.table import partial, table

BOOKMARK_SECONDS = 60.0
STALL_SECONDS = 60.0  # a connection that takes nothing for so long is half open
# A watch without a time-out of its own ends in half an hour to an hour, spread out as upstream's.
_WATCH_SECONDS = 1800


async def watch(plane: Plane, call: Call, request: Request, send: Send, started: Watch) -> None:
    frames = _Frames(plane, call, request)
    limit = request.number("timeoutSeconds") or _WATCH_SECONDS * (1 + random.random())
    await _start(send, JSON)
    await _until_gone(request, _watch(send, started, frames, limit))


class _Bounded:
    """
    As `send`, for a reader that takes what it is sent: one that stalls is let go.

    One timer for the whole watch, which looks whether anything was taken since it last
    looked: a timer for each event would cost as much as the event.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._sending = False
        self._taken = self._looked_at = 0
        self._timer = self._loop.call_later(STALL_SECONDS, self._look)

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self._sending = True
        await self._send(message)
        self._sending = False
        self._taken += 1

    def _look(self) -> None:
        if self._sending and self._taken == self._looked_at and self._task is not None:
            self._task.cancel()
            return
        self._looked_at = self._taken
        self._timer = self._loop.call_later(STALL_SECONDS, self._look)

    def end(self) -> None:
        self._timer.cancel()


async def _watch(to: Send, started: Watch, frames: _Frames, seconds: float) -> None:
    send = _Bounded(to)
    try:
        await _tell(send, started, frames, seconds)
    finally:
        send.end()


async def _tell(send: Send, started: Watch, frames: _Frames, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    bookmark = loop.time() + BOOKMARK_SECONDS
    batch: list[Seen] | None = started.first()
    try:
        while batch is not None:
            if batch:
                body = b"".join([frames.frame(seen) for seen in batch])
                await send({"type": "http.response.body", "body": body, "more_body": True})
            now = loop.time()
            if now >= bookmark or now >= end:
                bookmark = now + BOOKMARK_SECONDS
                # At the end too: the client's next watch then begins where this one stopped.
                if mark := started.bookmark():
                    body = frames.frame(mark)
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            if now >= end:
                break
            batch = await started.more(min(end, bookmark))
    except ApiError as error:
        body = encode({"type": "ERROR", "object": status.status(error)}) + b"\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class _Frames:
    """Events as bytes, in the form the watcher asked for."""

    def __init__(self, plane: Plane, call: Call, request: Request) -> None:
        self._plane, self._call = plane, call
        self._form = negotiate.form(request.accept)
        self._include = forms.include(request)
        self._headers = True

    def frame(self, seen: Seen) -> bytes:
        frames = seen.frames
        if self._form == negotiate.TABLE or frames is None:
            return self._encode(seen)
        at = (seen.type, self._form, self._call.resource.api_version)
        found = frames.get(at)
        if found is None:
            found = frames[at] = self._encode(seen)
        return found

    def _encode(self, seen: Seen) -> bytes:
        resource = self._call.resource
        if self._form == negotiate.TABLE and seen.type != "BOOKMARK":
            meta = {"resourceVersion": seen.obj["metadata"].get("resourceVersion", "")}
            obj: Any = table(
                resource,
                [seen.obj],
                meta,
                now=self._plane.clock.now(),
                include=self._include,
                headers=self._headers,
            )
            self._headers = False
        elif self._form == negotiate.TABLE:
            obj = table(resource, [], seen.obj["metadata"], now=0, include="", headers=False)
        elif self._form == negotiate.PARTIAL:
            obj = partial(seen.obj)
        elif seen.raw is not None and resource.api_version == resource.storage_version:
            return b'{"type":"%s","object":%s}\n' % (seen.type.encode(), seen.raw)
        elif seen.type == "BOOKMARK":
            obj = seen.obj
        else:
            obj = self._call.shown(seen.obj)
        return encode({"type": seen.type, "object": obj}) + b"\n"


async def log(
    planes: Hosting, plane: Plane, call: Call, request: Request, send: Send
) -> Answer | None:
    """GET pods/NAME/log: the output of one container, from whoever runs it."""
    pod = get(plane, call).obj
    name = podstreams.container(call.name, pod, request.query.get("container", ""))
    if not pod["spec"].get("nodeName"):
        return Answer(b"", content_type=b"text/plain")  # not started: nothing was said yet
    if planes.pod_streams is None:
        raise status.refuse(501, "NotImplemented", "no node serves the logs of this plane's pods")
    asked = [(key, request.query[key]) for key in podstreams.LOG_PARAMETERS if key in request.query]
    chunks = await planes.pod_streams.logs(plane.name, pod, name, asked)
    await _start(send, b"text/plain; charset=utf-8")
    await _until_gone(request, _copy(send, chunks))
    return None


async def _copy(send: Send, lines: AsyncIterator[bytes]) -> None:
    async for chunk in lines:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _start(send: Send, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"cache-control", b"no-cache, private")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    # The headers alone: a client waits for them before it knows that its watch has begun.
    await send({"type": "http.response.body", "body": b"", "more_body": True})


async def _until_gone(request: Request, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` until it ends or the client hangs up."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.disconnected())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done() and not working.cancelled():
            working.result()
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
