"""
The activator's own errors, in the form in which a client's library shows their reason.

SDKs of OpenAI and Anthropic read it from a JSON body; people and other programs get a line of text.
"""

from __future__ import annotations

from bidplane.core.activation.streams import error_body
from bidplane.http.proxy.heads import Headers
from bidplane.http.proxy.request import ProxiedRequest

CLOSED: Headers = [(b"Bidplane-State", b"closed")]


def refuse(
    request: ProxiedRequest, status: int, message: str, headers: Headers | None = None
) -> None:
    """Answer with an error; a stream that has begun gets its error event and is cut off."""
    # The event of a stream puts the message into its own form.
    body = error_body(request.head.path, status, message) if request.response is None else None
    if body is None:
        request.fail(status, message, headers)
    else:
        request.fail(status, body, [(b"Content-Type", b"application/json"), *(headers or [])])


def refuse_without_fallback(request: ProxiedRequest, reason: str) -> None:
    """Answer 502: the Service that should answer in its place cannot be reached."""
    refuse(request, 502, f"the fallback cannot be reached: {reason}\n", CLOSED)


def retry_after_headers(seconds: int) -> Headers:
    """Return the headers that name the seconds after which to try again."""
    return [*CLOSED, (b"Retry-After", b"%d" % seconds)]
