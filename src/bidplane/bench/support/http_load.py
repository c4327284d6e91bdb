"""
A backend and a load generator for proxies: raw HTTP/1.1, as little of it as possible.

    python -m bidplane.bench.support.http_load DESCRIPTOR     # the backend

A backend answers `/` with 256 bytes, and `/sse` with an event stream of EVENTS chunks.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import cast

import uvloop

EVENTS = 100
EVENT_SECONDS = 0.004
_EVENT = b"data: 0123456789012345678901234567890123456789\n\n"
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 256\r\n\r\n" + b"x" * 256
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"


class BackendProtocol(asyncio.Protocol):
    """One connection of a proxy."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /sse"):
            self._transport.write(_STREAM)
            self._send_event(EVENTS)
        else:
            self._transport.write(_ANSWER)

    def _send_event(self, count: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_CHUNK if count else _END)
        if count:
            loop = asyncio.get_running_loop()
            loop.call_later(EVENT_SECONDS, self._send_event, count - 1)


class ClosedLoopClient(asyncio.Protocol):
    """A client that sends one request after the other, and notes how long each took."""

    def __init__(self, request: bytes, end: bytes, count: int) -> None:
        self._request, self._end, self._left = request, end, count
        self.seconds: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._tail = b""
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-512:]
        if self.done.done() or not self._tail.endswith(self._end):
            return
        self.seconds.append(time.perf_counter() - self._began)
        self._left -= 1
        if self._left:
            self._send()
        else:
            self.done.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the proxy closed a connection"))


async def load(port: int, host: str, *, path: str, connections: int, count: int) -> list[float]:
    """Send `count` requests on each connection; return the seconds of all, sorted."""
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
    end = _END if path == "/sse" else b"x" * 256
    loop = asyncio.get_running_loop()
    clients = [ClosedLoopClient(request.encode(), end, count) for _ in range(connections)]
    waiting = iter(clients)
    for _ in clients:
        await loop.create_connection(lambda: next(waiting), "127.0.0.1", port)
    await asyncio.gather(*(client.done for client in clients))
    return sorted(seconds for client in clients for seconds in client.seconds)


async def _serve(listener: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(
        BackendProtocol, sock=listener, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(socket.socket(fileno=int(sys.argv[1]))))
