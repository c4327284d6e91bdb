"""
HTTP to a port inside a pod.

The plane cannot reach a pod's address; its node can. So a connection is opened as
`kubectl port-forward` opens one: two SPDY streams through the node's server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import httpcore2
import msgspec

from bidplane.errors import ApiError
from bidplane.http.client.caller import NoAnswer
from bidplane.http.client.upgraded import CONNECT_SECONDS, Streams
from bidplane.wire.streams.spdy.frames import SpdyError
from bidplane.wire.streams.spdy.session import Ended, Received, Session, WasReset

_CHUNK = 64 << 10


class ForwardedStream(httpcore2.AsyncNetworkStream):
    """One connection into the pod. The error stream carries the reason of a failure."""

    def __init__(self, ends: Streams, port: int) -> None:
        self._reader, self._writer = ends
        self._session = Session(client=True)
        headers = {"port": str(port), "requestid": "0"}
        self._error, opened = self._session.open({**headers, "streamtype": "error"}, fin=True)
        self._data, data_opened = self._session.open({**headers, "streamtype": "data"})
        self._writer.write(opened + data_opened)
        self._received, self._error_text, self._is_over = bytearray(), b"", False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                while not self._received and not self._is_over:
                    await self._receive()
        except TimeoutError as error:
            raise httpcore2.ReadTimeout from error
        except (OSError, SpdyError) as error:
            raise httpcore2.ReadError(str(error)) from error
        if not self._received and self._error_text:
            raise httpcore2.ReadError(self._error_text.decode(errors="replace"))
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data

    async def _receive(self) -> None:
        received = await self._reader.read(_CHUNK)
        self._is_over = not received
        ended = set()
        for event in self._session.receive(received):
            match event:
                case Received() if event.stream == self._data:
                    self._received += event.data
                case Received():
                    self._error_text += event.data
                case Ended() | WasReset():
                    ended.add(event.stream)
        # The error stream ends last: only then is it known that there was none.
        self._is_over = self._is_over or self._error in ended
        self._writer.write(self._session.take_answers())

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(self._session.send(self._data, buffer))
                await self._writer.drain()
        except TimeoutError as error:
            raise httpcore2.WriteTimeout from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("TLS into a pod is not spoken here: ask for http")

    def get_extra_info(self, info: str) -> Any:
        return None


class _Backend(httpcore2.AsyncNetworkBackend):
    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self._connect = connect

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return ForwardedStream(await self._connect(), port)


class ForwardedAnswer(msgspec.Struct, frozen=True):
    """The answer of a pod, whose body is still to be read; reading it to its end closes it."""

    code: int
    headers: list[tuple[bytes, bytes]]
    body: AsyncIterator[bytes]


async def call_forwarded(
    connect: Callable[[], Awaitable[Streams]],
    method: str,
    host: bytes,
    port: int,
    target: str,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
) -> ForwardedAnswer:
    """Send one request to a port of the pod that `connect` leads to; raise `NoAnswer`."""
    pool = httpcore2.AsyncConnectionPool(network_backend=_Backend(connect), max_connections=1)
    request = httpcore2.Request(
        method,
        httpcore2.URL(scheme=b"http", host=host, port=port, target=target.encode("latin-1")),
        headers=[
            (b"host", host + b":%d" % port),
            *headers,
            *([(b"content-length", b"%d" % len(body))] if body else []),
        ],
        content=body,
        extensions={"timeout": {"connect": CONNECT_SECONDS}},
    )
    try:
        response = await pool.handle_async_request(request)
    except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
        await pool.aclose()
        raise NoAnswer(str(error)) from error
    except ApiError:
        await pool.aclose()
        raise
    answer_headers = [(key.lower(), value) for key, value in response.headers]
    return ForwardedAnswer(response.status, answer_headers, _body(pool, response))


async def _body(
    pool: httpcore2.AsyncConnectionPool, response: httpcore2.Response
) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_stream():
            yield chunk
    except httpcore2.NetworkError:
        return  # the pod is gone; its output so far was passed on
    finally:
        await pool.aclose()
