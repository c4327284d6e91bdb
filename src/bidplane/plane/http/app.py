"""
The ASGI application: `/planes/NAME/…` is a Kubernetes API, `/healthz` says the process lives.

Every refusal is a `Status`; an error nobody foresaw is one too, with code 500, and is logged.
"""

from __future__ import annotations

import logging
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from bidplane.errors import ApiError
from bidplane.plane.fairness import Fairness
from bidplane.plane.http import documents, objects
from bidplane.plane.http.auth import attributes, authenticate, impersonated
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import (
    Answer,
    Disconnected,
    Receive,
    Request,
    Scope,
    Send,
    refusal,
    send_answer,
)
from bidplane.wire import paths, status

_log = logging.getLogger(__name__)
_HEALTH = ("/healthz", "/livez", "/readyz")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


async def serve(planes: Hosting, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    if scope["type"] != "http":
        return  # WebSockets (exec, attach) are for later; closing is the refusal
    raw: str = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    request = Request(scope, receive, raw)
    try:
        said = await _route(planes, request, send)
    except Disconnected:
        return
    except ApiError as error:
        said = refusal(error)
    except Exception as error:
        _log.exception("%s %s", request.method, request.path)
        said = refusal(status.refuse(500, "InternalError", f"Internal error occurred: {error}"))
    if said is not None:
        await send_answer(send, said, request.warnings)


async def _route(planes: Hosting, request: Request, send: Send) -> Answer | None:
    if request.path in _HEALTH:
        return Answer(b"ok", content_type=b"text/plain; charset=utf-8")
    head, name, path = _split(request.path)
    if head != "planes" or not name:
        raise status.no_such_path()
    user = authenticate(planes, name, request)
    plane = planes.plane(name)
    request.path, request.target = path, paths.target(path)
    user = impersonated(plane, user, request)
    plane.access.require(user, attributes(request))
    if path in _HEALTH or path.startswith(("/livez/", "/readyz/")):
        return Answer(b"ok", content_type=b"text/plain; charset=utf-8")
    said = documents.find(plane, request)
    if said is not None:
        return said
    if objects.streams_forever(request):
        with _fairness(planes).stream(name):
            return await objects.handle(planes, plane, user, request, send)
    if request.method in _WITH_BODY:
        await request.body()  # a slow sender holds up nobody but itself
    async with _fairness(planes).seat(name):
        return await objects.handle(planes, plane, user, request, send)


_turns: WeakKeyDictionary[Hosting, Fairness] = WeakKeyDictionary()


def _fairness(planes: Hosting) -> Fairness:
    found = _turns.get(planes)
    if found is None:
        found = _turns[planes] = Fairness()
    return found


def _split(path: str) -> tuple[str, str, str]:
    """`/planes/NAME/rest` → planes, NAME, /rest."""
    parts = path.split("/", 3)
    if len(parts) < 3:
        return "", "", ""
    return parts[1], unquote(parts[2]), "/" + (parts[3] if len(parts) > 3 else "")


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
