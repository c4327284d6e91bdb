"""Responses without an end: watches and logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from bidplane.errors import ApiError
from bidplane.http.asgi import Send, while_connected
from bidplane.http.replies import JSON, SMALL_BYTES, BoundedSend, Reply, bounded, encode, send_reply
from bidplane.plane.call import Call
from bidplane.plane.http import forms, podstreams
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import PlaneRequest
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.get import get
from bidplane.plane.verbs.watch import Watch, WatchedEvent
from bidplane.runtime.supervision import running
from bidplane.wire import negotiate, status
from bidplane.wire.table import partial, table

BOOKMARK_SECONDS = 60.0
# A watch without a time-out of its own ends in half an hour to an hour, spread out as upstream's.
_WATCH_SECONDS = 1800


async def watch(
    plane: Plane,
    call: Call,
    request: PlaneRequest,
    send: Send,
    started: Watch,
    first_sent: Callable[[], None],
) -> None:
    """Send the events of `started`; call `first_sent` when its initial events are sent."""
    frames = _Frames(plane, call, request)
    limit = request.number("timeoutSeconds") or _WATCH_SECONDS * (1 + random.random())
    await _start(send, JSON)
    await until_disconnect(request, _watch(send, request, started, frames, limit, first_sent))


async def send_bounded(request: PlaneRequest, send: Send, reply: Reply) -> None:
    """Send a reply; a large one only while its reader takes it."""
    try:
        if reply.chunks is None and len(reply.body) < SMALL_BYTES:
            await send_reply(send, reply, request.warnings)
        else:
            await until_disconnect(request, bounded(request, send, reply, request.warnings))
    finally:
        request.release_output()


async def _watch(
    to: Send,
    request: PlaneRequest,
    started: Watch,
    frames: _Frames,
    seconds: float,
    first_sent: Callable[[], None],
) -> None:
    send = BoundedSend(to, request.abort, request.drained)
    try:
        await _send_events(send, started, frames, seconds, first_sent)
    finally:
        send.end()


async def _send_events(
    send: Send, started: Watch, frames: _Frames, seconds: float, first_sent: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    bookmark = loop.time() + BOOKMARK_SECONDS
    try:
        # Each piece is made when the connection has taken the one before.
        async for piece in started.first():
            await _send_frames(send, frames, piece)
        first_sent()
        batch: list[WatchedEvent] | None = []
        while batch is not None:
            await _send_frames(send, frames, batch)
            now = loop.time()
            if now >= bookmark or now >= end:
                bookmark = now + BOOKMARK_SECONDS
                # At the end too: the client's next watch then begins where this one stopped.
                if mark := started.bookmark():
                    await _send_frames(send, frames, [mark])
            if now >= end:
                break
            batch = await started.more(min(end, bookmark))
    except ApiError as error:
        body = encode({"type": "ERROR", "object": status.status(error)}) + b"\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _send_frames(send: Send, frames: _Frames, events: list[WatchedEvent]) -> None:
    if not events:
        return
    # Room first: what waits for it is not made yet.
    async with frames.output.room(sum(event.size for event in events)):
        body = b"".join([frames.frame(event) for event in events])
        await send({"type": "http.response.body", "body": body, "more_body": True})


class _Frames:
    """Events as bytes, in the form that the watcher requested."""

    def __init__(self, plane: Plane, call: Call, request: PlaneRequest) -> None:
        self._plane, self._call = plane, call
        self.output = request.output
        self._form = negotiate.form(request.accept)
        self._include = forms.include_policy(request)
        self._headers = True

    def frame(self, event: WatchedEvent) -> bytes:
        frames = event.frames
        if self._form == negotiate.TABLE or frames is None:
            return self._encode(event)
        frame_key = (event.type, self._form, self._call.resource.api_version)
        frame = frames.get(frame_key)
        if frame is None:
            frame = frames[frame_key] = self._encode(event)
        return frame

    def _encode(self, event: WatchedEvent) -> bytes:
        resource = self._call.resource
        if self._form == negotiate.TABLE and event.type != "BOOKMARK":
            meta = {"resourceVersion": event.obj["metadata"].get("resourceVersion", "")}
            obj: Any = table(
                resource,
                [event.obj],
                meta,
                now=self._plane.clock.now(),
                include=self._include,
                headers=self._headers,
            )
            self._headers = False
        elif self._form == negotiate.TABLE:
            obj = table(resource, [], event.obj["metadata"], now=0, include="", headers=False)
        elif self._form == negotiate.PARTIAL:
            obj = partial(event.obj)
        elif event.raw is not None and resource.api_version == resource.storage_version:
            return b'{"type":"%s","object":%s}\n' % (event.type.encode(), event.raw)
        elif event.type == "BOOKMARK":
            obj = event.obj
        else:
            obj = self._call.to_requested_version(event.obj)
        return encode({"type": event.type, "object": obj}) + b"\n"


async def log(
    planes: Hosting, plane: Plane, call: Call, request: PlaneRequest, send: Send
) -> Reply | None:
    """Send the output of one container (GET pods/NAME/log), from the node that runs it."""
    pod = get(plane, call).obj
    name = podstreams.container(call.name, pod, request.query.get("container", ""))
    if not pod["spec"].get("nodeName"):
        return Reply(b"", content_type=b"text/plain")  # not started: no output yet
    if planes.pod_streams is None:
        raise status.refuse(501, "NotImplemented", "no node serves the logs of this plane's pods")
    log_params = [
        (key, request.query[key]) for key in podstreams.LOG_PARAMETERS if key in request.query
    ]
    chunks = await planes.pod_streams.logs(plane.name, pod, name, log_params)
    await _start(send, b"text/plain; charset=utf-8")
    await until_disconnect(request, _copy(send, chunks))
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


async def until_disconnect(request: PlaneRequest, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, as part of the request's, until it ends or the client disconnects."""
    working = asyncio.create_task(work)
    running.adopt(working)
    await while_connected(request.receive, working)
