"""
A request, read within bounds.

With `replies` it costs 6 µs a request, starlette's classes 10 (`benchmarks/http_kit.py`); those
have no bounds on a body's size and time, and no `Status`. So both are our own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from bidplane.http.asgi import CLIENT_CERTIFICATE, Receive, Scope, disconnected
from bidplane.http.extensions import Upgrade, abort_of, drained_of, upgrade_of
from bidplane.wire import status

_NOTHING: dict[str, Any] = {}
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}")
_TRUE = ("1", "true", "True", "TRUE", "t", "T")  # as Go reads a boolean


class BodyLimit(msgspec.Struct, frozen=True):
    """The most bytes of a body, the time in which it must arrive, and the text of a refusal."""

    size: int
    seconds: float = 60
    too_large: str = ""  # "" is upstream's text


class Disconnected(Exception):
    """The client disconnected; there is nobody to answer."""


class Request:
    """One HTTP request. `path` is as it was sent: `parts` splits it, then decodes each part."""

    __slots__ = (
        "_body",
        "_scope",
        "headers",
        "method",
        "path",
        "query",
        "query_text",
        "raw_headers",
        "receive",
        "upgrade",
    )
    body_limit = BodyLimit(1 << 20)

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self.receive = receive
        self.method: str = scope["method"]
        raw: bytes | None = scope.get("raw_path")
        self.path = raw.decode("latin-1") if raw else quote(scope["path"], errors="surrogatepass")
        self.raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers: dict[bytes, bytes] = dict(self.raw_headers)
        self.query_text = query = scope["query_string"].decode("latin-1")
        # The last value of each parameter.
        self.query: dict[str, str] = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
        self.upgrade: Upgrade | None = upgrade_of(scope)  # to another protocol, if it asks for one
        self._body: bytes | None = None

    @property
    def parts(self) -> list[str]:
        """The decoded parts of the path: a quoted slash does not split a name."""
        return [unquote(part) for part in self.path.strip("/").split("/")]

    @property
    def abort(self) -> Callable[[], None]:
        """The function that ends the connection, and drops its unsent bytes."""
        return abort_of(self._scope)

    @property
    def drained(self) -> Callable[[], Awaitable[None]]:
        """The function that waits until the connection has taken most of what was sent."""
        return drained_of(self._scope)

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate, if it showed one; the TLS server has checked who signed it."""
        certificate: bytes | None = self._scope.get("state", _NOTHING).get(CLIENT_CERTIFICATE)
        return certificate

    @property
    def bearer(self) -> str:
        """The bearer token, or ""; it may have any characters."""
        return bearer_in(self.headers.get(b"authorization", b""))

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def header_values(self, name: bytes) -> list[str]:
        """Return the values of a header that may be sent more than once."""
        return [value.decode("latin-1") for key, value in self.raw_headers if key == name]

    def headers_after(self, prefix: bytes) -> list[tuple[str, str]]:
        """
        Return each header whose name begins with `prefix`: the rest of its name, and its value.
        """
        return [
            (unquote(key[len(prefix) :].decode("latin-1")), value.decode("latin-1"))
            for key, value in self.raw_headers
            if key.startswith(prefix)
        ]

    @property
    def accept(self) -> str:
        return self.header(b"accept") or "*/*"

    @property
    def media_type(self) -> str:
        return self.header(b"content-type").partition(";")[0].strip().lower()

    def values(self, name: str) -> list[str]:
        """Return the values of a parameter that may be sent more than once."""
        pairs = parse_qsl(self.query_text, keep_blank_values=True)
        return [value for key, value in pairs if key == name]

    def first(self, name: str) -> str:
        """Return the first value of a parameter, or ""."""
        return next(iter(self.values(name)), "")

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in _TRUE

    def number(self, name: str) -> int | None:
        """Return a parameter as Go reads it; raise 400 for anything but 64 bits in digits."""
        text = self.query.get(name, "")
        if not text:
            return None
        if (number := whole_number(text)) is None or not -(2**63) <= number < 2**63:
            excerpt = text if len(text) <= 40 else f"{text[:40]}…"
            raise status.bad_request(f"{name} must be a number of 64 bits, not {excerpt!r}")
        return number

    async def body(self, limit: BodyLimit | None = None) -> bytes:
        """Return the whole body, read once; raise 413 or 408, or `Disconnected`."""
        if self._body is None:
            bounds = limit or self.body_limit
            try:
                async with asyncio.timeout(bounds.seconds):
                    self._body = await self._read(bounds)
            except TimeoutError:
                raise status.refuse(
                    408, "Timeout", f"the body did not arrive within {bounds.seconds:.0f} seconds"
                ) from None
        return self._body

    async def _read(self, limit: BodyLimit) -> bytes:
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit.size:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit.size:
                raise _too_large(limit)
            chunks.append(chunk)
            if not message.get("more_body"):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def disconnected(self) -> None:
        """Wait until the client is gone."""
        await disconnected(self.receive)


def bearer_in(authorization: bytes) -> str:
    """Return the token of an `Authorization: Bearer …` header, or ""."""
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def bearer_of(scope: Scope) -> str:
    """Return the bearer token of a request that is not read yet, or ""."""
    return bearer_in(dict(scope["headers"]).get(b"authorization", b""))


def whole_number(text: str) -> int | None:
    """Return the number in a text of ASCII digits, perhaps with a sign; else None."""
    # No digits of other scripts, no underscores; so many that a conversion takes no time.
    return int(text) if _NUMBER.fullmatch(text) else None


def _too_large(limit: BodyLimit) -> status.StatusError:
    if limit.too_large:
        return status.refuse(413, "RequestEntityTooLarge", limit.too_large)
    return status.too_large(limit.size)
