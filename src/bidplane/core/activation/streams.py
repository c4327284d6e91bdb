"""
Heartbeats and errors in the form that the clients of a protocol read. Pure.

Clients of the OpenAI form skip comment lines and raise on `data: {"error": …}`; Anthropic's expect
`event: ping` and raise on `event: error`. A stream that merely ends looks complete to both. Of an
answer that is no stream their SDKs show the message of the JSON body, and nothing of a text.
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


# The words for an answer's status: OpenAI's type and code, and Anthropic's type.
_UNAVAILABLE = ("server_error", "service_unavailable", "api_error")
_ERROR_NAMES = {
    401: ("invalid_request_error", "invalid_api_key", "authentication_error"),
    403: ("invalid_request_error", "forbidden", "permission_error"),
    404: ("invalid_request_error", "not_found", "not_found_error"),
    429: ("requests", "rate_limit_exceeded", "rate_limit_error"),
    504: ("server_error", "timeout", "timeout_error"),
}


def _openai_body(status: int, message: str) -> str:
    kind, code, _ = _ERROR_NAMES.get(status, _UNAVAILABLE)
    return json.dumps({"error": {"message": message.strip(), "type": kind, "code": code}})


def _anthropic_body(status: int, message: str) -> str:
    _, _, kind = _ERROR_NAMES.get(status, _UNAVAILABLE)
    return json.dumps({"type": "error", "error": {"type": kind, "message": message.strip()}})


def error_body(path: bytes, status: int, message: str) -> str | None:
    """Return an error as JSON of the protocol that a path is of; None for any other path."""
    if path.endswith(_ANTHROPIC_PATHS):
        return _anthropic_body(status, message)
    return _openai_body(status, message) if path.endswith(_OPENAI_PATHS) else None


def _openai_error(message: str) -> bytes:
    return b"data: " + _openai_body(503, message).encode() + b"\n\n"


def _anthropic_error(message: str) -> bytes:
    return b"event: error\ndata: " + _anthropic_body(503, message).encode() + b"\n\n"


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
