"""
A port inside a pod as a connection, for our own HTTP client.

The plane cannot reach a pod's address; its node can. So a connection is opened as
`kubectl port-forward` opens one: two SPDY streams through the node's server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpcore2

from bidplane.wire.spdy.frames import SpdyError
from bidplane.wire.spdy.session import Ended, Received, Session, WasReset

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CHUNK = 64 << 10


class ForwardedStream(httpcore2.AsyncNetworkStream):
    """One connection into the pod. What it could not do is told by the error stream."""

    def __init__(self, ends: Ends, port: int) -> None:
        self._reader, self._writer = ends
        self._session = Session(client=True)
        named = {"port": str(port), "requestid": "0"}
        self._error, opened = self._session.open({**named, "streamtype": "error"}, fin=True)
        self._data, more = self._session.open({**named, "streamtype": "data"})
        self._writer.write(opened + more)
        self._received, self._trouble, self._over = bytearray(), b"", False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                while not self._received and not self._over:
                    await self._hear()
        except TimeoutError as error:
            raise httpcore2.ReadTimeout from error
        except (OSError, SpdyError) as error:
            raise httpcore2.ReadError(str(error)) from error
        if not self._received and self._trouble:
            raise httpcore2.ReadError(self._trouble.decode(errors="replace"))
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data

    async def _hear(self) -> None:
        received = await self._reader.read(_CHUNK)
        self._over = not received
        ended = set()
        for event in self._session.receive(received):
            match event:
                case Received() if event.stream == self._data:
                    self._received += event.data
                case Received():
                    self._trouble += event.data
                case Ended() | WasReset():
                    ended.add(event.stream)
        # The error stream ends last: only then is it known that there was none.
        self._over = self._over or self._error in ended
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
    def __init__(self, connect: Callable[[], Awaitable[Ends]]) -> None:
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


def pool_through(connect: Callable[[], Awaitable[Ends]]) -> httpcore2.AsyncConnectionPool:
    """HTTP connections that are all to one pod."""
    return httpcore2.AsyncConnectionPool(network_backend=_Backend(connect), max_connections=1)
