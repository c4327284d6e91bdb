"""
HTTP/1.1 to one server, for many small calls.

Exchange and nodes mostly send small requests with answers of about a kilobyte. Such a call costs
70 µs of CPU here, its server's part included, and 720 over httpx2 (`benchmarks/http_kit.py`). There
are no redirects, proxies, cookies or compression. For streams and large answers see `caller`.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

_IDLE_MOST = 32  # connections kept for the next call


class Broken(Exception):
    """Raised when no complete answer came; whether the request was carried out is unknown."""


class HttpReply(NamedTuple):
    """The status and body of a response."""

    status: int
    body: bytes


class Connections:
    """Connections to the server of `url`, each used by one call at a time."""

    def __init__(self, url: str, trust: ssl.SSLContext, *, timeout: float) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._trust = trust if secure else None
        self._timeout = timeout
        self._head = f"Host: {parts.netloc}\r\nUser-Agent: bidplane\r\nAccept: application/json\r\n"
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<Connections {self._host}:{self._port} busy {len(self._busy)},"
            f" idle {len(self._idle)}>"
        )

    async def call(
        self, method: str, target: str, headers: dict[str, str], body: bytes | None
    ) -> HttpReply:
        """
        Send a request and return the answer; raises `Broken` when it is not complete in time.
        """
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        size = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\n{self._head}{lines}{size}\r\n"
        if "\r" in target or "\n" in target or lines.count("\n") != len(headers):
            raise ValueError("a line break in a request's head")
        try:
            async with asyncio.timeout(self._timeout):
                connection = await self._acquire()
                self._busy.add(connection)
                try:
                    return await connection.call(head.encode("latin-1") + (body or b""))
                finally:
                    self._busy.discard(connection)
                    self._release(connection)
        except TimeoutError:
            raise Broken(f"no answer within {self._timeout:g} s") from None
        except OSError as error:  # also TLS errors
            raise Broken(str(error) or type(error).__name__) from error

    def close(self) -> None:
        self._closed = True
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    async def _acquire(self) -> _Connection:
        """An idle connection, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, self._host, self._port, ssl=self._trust
        )
        return connection

    def _release(self, connection: _Connection) -> None:
        """Keep a connection for the next call, or close it."""
        if connection.usable and not self._closed and len(self._idle) < _IDLE_MOST:
            self._idle.append(connection)
        else:
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection, with its HTTP parser."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpReply] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self.usable = False

    async def call(self, request: bytes) -> HttpReply:
        """Send a request and wait for its answer."""
        assert self._transport is not None
        # Not reusable before the answer is complete: the next call would read the rest of it.
        self.usable = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports do not inherit from it
        self.usable = True

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._fail(f"the connection broke: {exc}" if exc else "the server closed the connection")

    def _fail(self, reason: str) -> None:
        """Fail the pending call."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(reason))

    # The parser's callbacks.

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim response: the answer follows
            self._body = []
            return
        body, self._body = b"".join(self._body), []
        if self._answer is None or self._answer.done():
            self.close()  # an answer without a request, or its caller was cancelled
            return
        self.usable = self._parser.should_keep_alive()
        self._answer.set_result(HttpReply(status, body))
