"""Requests without a server."""

from __future__ import annotations

from typing import Any

from bidplane.http.asgi import Message, Receive, Scope


def scope_of(target: str, method: str = "GET", headers: dict[str, str] | None = None) -> Scope:
    """The scope of a request, as uvicorn makes it."""
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(key.encode(), value.encode()) for key, value in (headers or {}).items()],
    }


def body_of(*chunks: bytes, then: Message | None = None) -> Receive:
    """A `receive` that returns these chunks, and after them `then` for ever."""
    messages: list[Message] = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, 1)
    ]

    async def receive() -> Message:
        return messages.pop(0) if messages else then or {"type": "http.disconnect"}

    return receive


class Sent:
    """A `send` that keeps what was sent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def code(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[bytes, Any]:
        return dict(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])
