"""
Extensions that our servers put into a scope beside ASGI's own: a request to speak another protocol,
the end of a connection, and the wait for its reader.

`server.connection` puts them there; another ASGI server does not, and then no request demands an
upgrade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from bidplane.http.asgi import Scope

UPGRADE, ABORT, DRAINED = "bidplane.upgrade", "bidplane.abort", "bidplane.drained"


class HandedOver(Protocol):
    """A connection that can be taken from its HTTP server."""

    def hand_over(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


class Upgrade:
    """A request to speak another protocol on this connection."""

    def __init__(self, connection: HandedOver, protocol: str) -> None:
        self._connection = connection
        self.protocol = protocol  # as the client wrote it, in lower case

    def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the raw connection; the caller writes the response, from its first line."""
        return self._connection.hand_over()


def upgrade_of(scope: Scope) -> Upgrade | None:
    """Return the upgrade that a request demands, or None."""
    upgrade: Upgrade | None = (scope.get("extensions") or {}).get(UPGRADE)
    return upgrade


def _nothing() -> None:
    pass


def abort_of(scope: Scope) -> Callable[[], None]:
    """Return the function that ends the connection at once, and drops its unsent bytes."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    abort: Callable[[], None] = extensions.get(ABORT, _nothing)
    return abort


async def _nothing_waits() -> None:
    pass


def drained_of(scope: Scope) -> Callable[[], Awaitable[None]]:
    """Return the function that waits until the connection has taken most of what was sent."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    drained: Callable[[], Awaitable[None]] = extensions.get(DRAINED, _nothing_waits)
    return drained


def switching(headers: list[tuple[str, str]]) -> bytes:
    """Return the head of the response to an upgrade that is accepted."""
    lines = ["HTTP/1.1 101 Switching Protocols", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
