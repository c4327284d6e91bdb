"""
Connections that a server has switched to another protocol at our demand.

A general client keeps the connection to itself, so the request and the head of its answer are
written and read here; everything after the head belongs to the caller.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence

from bidplane.errors import ApiError
from bidplane.http.client.caller import NoAnswer

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CONNECT_SECONDS = 10.0
_LARGEST_HEAD = 64 << 10
_LARGEST_REFUSAL = 16 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |$)")


async def open_upgraded(
    address: str,
    port: int,
    target: str,
    protocol: str,
    *,
    trust: ssl.SSLContext | None,
    headers: Sequence[tuple[bytes, bytes]],
) -> tuple[bytes, Streams]:
    """
    Return a connection that has switched to `protocol`, and the head of its answer.

    Raises `NoAnswer`, or `ApiError` with the server's words when it refuses.
    """
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                address, port, ssl=trust, limit=_LARGEST_HEAD
            )
    except (OSError, TimeoutError) as error:
        raise NoAnswer(str(error)) from error
    try:
        writer.write(_request(target, protocol, headers))
        async with asyncio.timeout(CONNECT_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            answer = _Head(head)
            if answer.code == 101:
                return head, (reader, writer)
            message = await _refusal(reader, answer.length)
    except (
        OSError,
        TimeoutError,
        asyncio.IncompleteReadError,
        asyncio.LimitOverrunError,
        _NotHttp,
    ) as error:
        writer.close()
        raise NoAnswer(str(error)) from error
    writer.close()
    raise ApiError(message, code=answer.code, reason="BadRequest")


def _request(target: str, protocol: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    method = "GET" if protocol == "websocket" else "POST"
    lines = [
        f"{method} {target} HTTP/1.1".encode(),
        b"Connection: Upgrade",
        b"Upgrade: " + protocol.encode("latin-1"),
        *([b"Content-Length: 0"] if method == "POST" else []),
        *(name + b": " + value for name, value in headers),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class _NotHttp(Exception):
    """The other end is no HTTP server."""


class _Head:
    """The status code of an answer, and the length of its body if known."""

    def __init__(self, raw: bytes) -> None:
        first, *lines = raw.split(b"\r\n")
        status = _STATUS.match(first)
        if status is None:
            raise _NotHttp
        self.code = int(status[1])
        pairs = (line.partition(b":") for line in lines)
        headers = {key.strip().lower(): value.strip() for key, _, value in pairs}
        length = headers.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() else None


async def _refusal(reader: asyncio.StreamReader, length: int | None) -> str:
    """Return the body of a refusal; of one in chunks, the first chunk."""
    if length is not None:
        body = await reader.readexactly(min(length, _LARGEST_REFUSAL))
    else:
        line = (await reader.readuntil(b"\r\n")).strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", line):
            raise _NotHttp
        size = int(line, 16)
        body = await reader.readexactly(min(size, _LARGEST_REFUSAL))
    return body.decode(errors="replace").strip()
