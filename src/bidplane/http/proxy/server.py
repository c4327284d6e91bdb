"""
Listening for clients, and the sweep that acts on deadlines.

One sweep a second looks at every connection's deadline. A timer for each byte that arrives would
cost more than the byte.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import msgspec

from bidplane.http.proxy.client import ClientConnection
from bidplane.http.proxy.pool import BackendPool
from bidplane.http.proxy.request import ProxiedRequest
from bidplane.http.server.accepting import Acceptor, Bounds, ConnectionGate

SWEEP_SECONDS = 1.0
_BACKLOG = 1024


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what a client may take, in seconds."""

    head_seconds: float = 15.0
    body_seconds: float = 60.0  # without a byte of a body
    idle_seconds: float = 75.0  # between two requests
    stall_seconds: float = 60.0  # without reading an answer
    linger_seconds: float = 2.0  # for a client to read why it was refused


class Site:
    """The dispatcher, limits and connections of a listener."""

    def __init__(
        self,
        dispatch: Callable[[ProxiedRequest], None],
        *,
        bounds: Bounds | None = None,
        limits: ClientLimits | None = None,
        trusts: Callable[[str], bool] = lambda address: False,
    ) -> None:
        """`trusts` tells if an address is a proxy of the owner's, whose X-Forwarded we keep."""
        self.dispatch, self.trusts = dispatch, trusts
        self.gate = ConnectionGate(bounds or Bounds.of_process())
        self.limits = limits or ClientLimits()
        self.now: Callable[[], float] = asyncio.get_running_loop().time
        self.connections: set[ClientConnection] = set()

    def sweep(self, now: float) -> None:
        for connection in [c for c in self.connections if c.deadline < now]:
            connection.expire()


class ProxyServer:
    """Listeners, their connections and their backends'."""

    def __init__(self, site: Site, pool: BackendPool) -> None:
        self.site, self.pool = site, pool
        self._servers: list[asyncio.Server | Acceptor] = []
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Listen; a process may have several listeners. With `tls`, handshakes are bounded too."""
        loop = asyncio.get_running_loop()
        if tls is not None:
            self._servers.append(
                Acceptor(
                    listener, lambda end: ClientConnection(self.site, end), tls, self.site.gate
                )
            )
        else:
            self._servers.append(
                await loop.create_server(
                    lambda: ClientConnection(self.site), sock=listener, backlog=_BACKLOG
                )
            )
        if self._sweeping is None:
            self._sweeping = loop.create_task(self._sweep())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(self.site.now())

    def sweep(self, now: float) -> None:
        """Act on every deadline before `now`."""
        self.site.sweep(now)
        self.pool.sweep(now)

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self.site.connections):
            connection.abort()
        await self.pool.close()
