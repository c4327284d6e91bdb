"""
Connections to backends, kept for the next request: the largest part of a proxy's cost is opening
them.

A backend may close an idle connection at the moment a request is written to it, and nobody can
tell whether it was carried out. A request that may be sent twice takes any idle connection, and is
sent again on a new one; another takes only a connection used in the last second, which no server
closes as idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from bidplane.http.proxy.backend import NEVER, BackendConnection
from bidplane.http.proxy.request import ProxiedRequest

Address: TypeAlias = tuple[str, int]
_FRESH_SECONDS = 1.0


class BackendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what a backend may take."""

    connect_seconds: float = 5.0
    response_seconds: float = 600.0  # between two bytes of an answer
    tunnel_seconds: float = 3600.0  # between two bytes of a WebSocket
    idle_seconds: float = 30.0  # of a connection that carries nothing
    idle_count: int = 512  # connections kept for each backend


class BackendPool:
    """Every connection to every backend of this process."""

    def __init__(self, limits: BackendLimits | None = None) -> None:
        self.limits = limits or BackendLimits()
        self._loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self._loop.time
        self._idle: dict[Address, list[BackendConnection]] = {}
        self._open: set[BackendConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        idle = sum(len(connections) for connections in self._idle.values())
        return f"<BackendPool open {len(self._open)}, idle {idle}>"

    def forward(self, request: ProxiedRequest, address: Address, *, new: bool = False) -> None:
        """Send a request on an idle connection, or on a new one."""
        connection = None if new else self._take(request, address)
        if connection is not None:
            connection.is_reused = True
            connection.begin(request)
            return
        task = self._loop.create_task(self._connect(request, address))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _take(self, request: ProxiedRequest, address: Address) -> BackendConnection | None:
        idle = self._idle.get(address)
        if not idle:
            return None
        if not request.is_replayable and idle[-1].used_at < self.now() - _FRESH_SECONDS:
            return None
        connection = idle.pop()
        if not idle:
            del self._idle[address]
        return connection

    async def _connect(self, request: ProxiedRequest, address: Address) -> None:
        try:
            async with asyncio.timeout(self.limits.connect_seconds):
                _, connection = await self._loop.create_connection(
                    lambda: BackendConnection(self, address), *address
                )
        except TimeoutError:
            self._unreachable(request, f"no connection in {self.limits.connect_seconds:g} seconds")
            return
        except OSError as error:
            self._unreachable(request, error.strerror or str(error))
            return
        if request.ended:  # its client left while we connected
            self.release(connection)
        else:
            connection.begin(request)

    def _unreachable(self, request: ProxiedRequest, reason: str) -> None:
        if not request.ended:
            request.on_unreachable(request, reason)

    def opened(self, connection: BackendConnection) -> None:
        self._open.add(connection)

    def lost(self, connection: BackendConnection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)
            if not idle:
                del self._idle[connection.address]

    def release(self, connection: BackendConnection) -> None:
        """Keep a connection for the next request, or close it."""
        idle = self._idle.setdefault(connection.address, [])
        if not connection.usable or len(idle) >= self.limits.idle_count:
            connection.close()
            return
        connection.used_at = self.now()
        connection.deadline = connection.used_at + self.limits.idle_seconds
        idle.append(connection)

    def forget(self, address: Address) -> None:
        """Close the idle connections to a backend that has gone."""
        for connection in self._idle.pop(address, []):
            connection.close()

    def sweep(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        for connection in [c for c in self._open if c.deadline < now]:
            if connection.deadline != NEVER:
                connection.expire()

    async def close(self) -> None:
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self._open):
            connection.close()
