"""The few ASGI words the web layer needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 1 << 20


class Disconnected(Exception):
    """The client went before it had said all."""


class TooLarge(Exception):
    """The client says more than we listen to."""


async def read_body(receive: Receive, *, most: int = LARGEST_BODY) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
        if len(body) > most:
            raise TooLarge
        if not message.get("more_body"):
            return body


def bearer(scope: Scope) -> str:
    """The token a request came with; any bytes may be in its place."""
    header: bytes = dict(scope["headers"]).get(b"authorization", b"")
    return header.decode("latin-1").removeprefix("Bearer ")


async def answer(send: Send, code: int, body: bytes, content_type: str) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_status(send: Send, code: int, reason: str, message: str) -> None:
    """A refusal, in the form every Kubernetes client understands."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    await answer(send, code, msgspec.json.encode(status), "application/json")
