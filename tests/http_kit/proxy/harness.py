"""A proxy in front of one scripted backend, all on loopback sockets of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import uvloop

from bidplane.http.proxy.client import ClientConnection
from bidplane.http.proxy.pool import BackendLimits, BackendPool
from bidplane.http.proxy.request import ProxiedRequest
from bidplane.http.proxy.server import ClientLimits, ProxyServer, Site
from bidplane.http.server.accepting import Bounds

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SECONDS = 20


class Setup:
    """Addresses of a proxy and its backend, and what each of them saw."""

    def __init__(self, server: ProxyServer, proxy: int, backend: int) -> None:
        self.server, self.proxy, self.backend = server, proxy, backend
        self.requests: list[ProxiedRequest] = []
        self.ends = 0
        self.connections = 0  # that the backend accepted

    @property
    def client(self) -> ClientConnection:
        (connection,) = self.server.site.connections
        return connection

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.proxy, limit=1 << 24)

    async def exchange(self, data: bytes) -> bytes:
        """Send bytes, and return everything until the connection ends."""
        reader, writer = await self.connect()
        writer.write(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(1 << 16):
                received += more
        writer.close()
        return received

    async def expire(self) -> None:
        """Let every deadline pass."""
        self.server.sweep(asyncio.get_running_loop().time() + 1e6)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def proxied(
    script: Script,
    *,
    limits: ClientLimits | None = None,
    backend_limits: BackendLimits | None = None,
    hold: bool = False,
    bounds: Bounds | None = None,
    trusted: bool = False,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Setup]:
    """Run `script` for each connection to the backend; with `hold` requests are not forwarded."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        setup.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(reader, writer)
        if not writer.is_closing():
            writer.close()

    backend = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
    port = backend.sockets[0].getsockname()[1]
    pool = BackendPool(backend_limits)

    def dispatch(request: ProxiedRequest) -> None:
        setup.requests.append(request)

        def ended(request: ProxiedRequest) -> None:
            setup.ends += 1

        request.on_end = ended
        if not hold:
            pool.forward(request, ("127.0.0.1", port))

    site = Site(
        dispatch,
        limits=limits,
        bounds=bounds or Bounds(total=2000, per_address=2000, per_loopback_address=2000),
        trusts=lambda address: trusted,
    )
    server = ProxyServer(site, pool)
    listener = socket.create_server(("127.0.0.1", 0))
    setup = Setup(server, listener.getsockname()[1], port)
    await server.start(listener, tls)
    try:
        yield setup
    finally:
        await server.close()
        backend.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(work: Awaitable[None]) -> None:
    """Run a test's coroutine, within a bound of time."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await work

    uvloop.run(bounded())


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def header(head: bytes, name: bytes) -> list[bytes]:
    """Return the values of a header in a raw head."""
    lines = head.split(b"\r\n")[1:]
    return [
        line.partition(b":")[2].strip() for line in lines if line.lower().startswith(name + b":")
    ]


def answering(answer: bytes, *, close: bool = False) -> Script:
    """Return a backend that answers every request without a body with the same bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            writer.write(answer)
            await writer.drain()
            if close:
                return

    return script


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
LAST_GET = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"
