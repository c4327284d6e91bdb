"""
The ASGI application: `/planes/NAME/…` is a Kubernetes API, `/healthz` says the process lives.

Every refusal is a `Status`; an unexpected error is one too, with code 500, and is logged.
"""

from __future__ import annotations

import logging
from urllib.parse import unquote

from bidplane.errors import ApiError
from bidplane.http.asgi import Receive, Scope, Send, lifespan
from bidplane.http.replies import SMALL_BYTES, Reply, refusal, text_reply
from bidplane.http.request import Disconnected
from bidplane.plane.call import User
from bidplane.plane.http import documents, objects, streams
from bidplane.plane.http.auth import attributes, authenticate, impersonate
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import PlaneRequest
from bidplane.plane.plane import Plane
from bidplane.runtime.supervision import running
from bidplane.wire import paths, status

_log = logging.getLogger(__name__)
_HEALTH = ("/healthz", "/livez", "/readyz")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


async def serve(planes: Hosting, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    if scope["type"] != "http":
        return  # WebSockets (exec, attach) are for later; closing is the refusal
    request = PlaneRequest(scope, receive)
    try:
        response = await _route(planes, request, send)
    except Disconnected:
        return
    except ApiError as error:
        response = refusal(error)
    except Exception as error:
        _log.exception("%s %s", request.method, request.path)
        response = refusal(status.refuse(500, "InternalError", f"Internal error occurred: {error}"))
    if response is not None:
        await streams.send_bounded(request, send, response)


async def _route(planes: Hosting, request: PlaneRequest, send: Send) -> Reply | None:
    if request.path in _HEALTH:
        return text_reply(b"ok")
    head, name, path = _split(request.path)
    if head != "planes" or not name:
        raise status.no_such_path()
    user = authenticate(planes, name, request)
    plane = planes.plane(name)
    request.path, request.target = path, paths.target(path)
    user = impersonate(plane, user, request)
    attrs = attributes(request)
    plane.access.require(user, attrs)
    if path in _HEALTH or path.startswith(("/livez/", "/readyz/")):
        return text_reply(b"ok")
    document = documents.find(plane, request)
    if document is not None:
        return document
    kind = f"{attrs.resource}.{attrs.group}" if attrs.group else attrs.resource
    if problem := running.refusal(plane=name, verb=attrs.verb, kind=kind):
        raise status.refuse(429, "TooManyRequests", problem)
    request.output = planes.fairness.output(name, streams=objects.streams_forever(request))
    with running.work(plane=name, verb=attrs.verb, kind=kind):
        return await _answer(planes, plane, user, request, send)


async def _answer(
    planes: Hosting, plane: Plane, user: User, request: PlaneRequest, send: Send
) -> Reply | None:
    """Answer a request as a stream, within a snapshot or in a seat."""
    if objects.streams_forever(request):
        with planes.fairness.stream(plane.name):
            return await _in_snapshot(planes, plane, user, request, send)
    if request.method in _WITH_BODY:
        await request.body()  # a slow sender holds up nobody but itself
    if objects.snapshot_bytes(plane, request):
        return await _in_snapshot(planes, plane, user, request, send)
    return await _answer_in_seat(planes, plane, user, request, send)


async def _in_snapshot(
    planes: Hosting, plane: Plane, user: User, request: PlaneRequest, send: Send
) -> Reply | None:
    """
    Answer a request that may read many objects at once.

    A list is sent here, without a seat: a client that reads slowly holds one of the few snapshots
    of its own plane, and nothing that other planes wait for.
    """
    size = objects.snapshot_bytes(plane, request)
    if not size:
        return await objects.handle(planes, plane, user, request, send)
    snapshot = await planes.fairness.snapshot(plane.name, size)
    request.first_sent = snapshot.release
    try:
        if objects.streams_forever(request):
            return await objects.handle(planes, plane, user, request, send)
        response = await _answer_in_seat(planes, plane, user, request, send)
        if response is not None:
            await streams.send_bounded(request, send, response)
        return None
    finally:
        snapshot.release()


async def _answer_in_seat(
    planes: Hosting, plane: Plane, user: User, request: PlaneRequest, send: Send
) -> Reply | None:
    async with planes.fairness.seat(plane.name):
        if not plane.turns.begin(plane.name):
            await plane.turns.next(plane.name)
        reply = await objects.handle(planes, plane, user, request, send)
        if reply is not None and len(reply.body) >= SMALL_BYTES:
            # In the seat: as many large objects wait for room as there are seats.
            await request.hold_output(len(reply.body))
        return reply


def _split(path: str) -> tuple[str, str, str]:
    """Split `/planes/NAME/rest` into planes, NAME and /rest."""
    parts = path.split("/", 3)
    if len(parts) < 3:
        return "", "", ""
    return parts[1], unquote(parts[2]), "/" + (parts[3] if len(parts) > 3 else "")
