"""
Event streams that wait: heartbeats and errors in the form that their clients read. Pure.

Clients of the OpenAI form skip comment lines and raise on `data: {"error": …}`; Anthropic's expect
`event: ping` and raise on `event: error`. A stream that merely ends looks complete to both.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from bidplane.api.endpoint import Heartbeat

_ANTHROPIC_PATHS = (b"/messages",)
_OPENAI_PATHS = (b"/completions", b"/responses", b"/embeddings")


class StreamForm(msgspec.Struct, frozen=True):
    """The heartbeat of a protocol, and its error."""

    beat: bytes
    error: Callable[[str], bytes]


def _openai_error(message: str) -> bytes:
    error = {"message": message.strip(), "type": "server_error", "code": "service_unavailable"}
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def _anthropic_error(message: str) -> bytes:
    error = {"type": "error", "error": {"type": "api_error", "message": message.strip()}}
    return b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"


OPENAI = StreamForm(b": the service is waking\n\n", _openai_error)
ANTHROPIC = StreamForm(b'event: ping\ndata: {"type": "ping"}\n\n', _anthropic_error)


def asks_for_stream(accept: bytes, content_type: bytes, body: bytes) -> bool:
    """Tell if a request asks for an event stream: by its Accept header or its JSON body."""
    if b"text/event-stream" in accept.lower():
        return True
    if b"json" not in content_type.lower() or b'"stream"' not in body:
        return False
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and message.get("stream") is True


def form_of(
    heartbeat: Heartbeat, path: bytes, *, accept: bytes, content_type: bytes, body: bytes
) -> StreamForm | None:
    """Return the form of a request's heartbeats; None if it waits in silence."""
    if heartbeat is Heartbeat.NONE or not asks_for_stream(accept, content_type, body):
        return None
    if heartbeat is Heartbeat.OPENAI:
        return OPENAI
    if heartbeat is Heartbeat.ANTHROPIC or path.endswith(_ANTHROPIC_PATHS):
        return ANTHROPIC
    return OPENAI if path.endswith(_OPENAI_PATHS) else None
