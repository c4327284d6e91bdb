"""
Accepting connections within bounds that apply before authentication.

So many connections at once, and so many from one address; a TLS handshake has a few seconds. When
the process has no descriptor left, the one that is kept in reserve is used to take a connection
and close it: the client is refused at once, and the listener does not spin.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable

import msgspec
import structlog

from bidplane.http.server import descriptors

SETTING = "BIDPLANE_CONNECTIONS_PER_ADDRESS"
_HANDSHAKE_SECONDS = 10.0
_FULL_SECONDS = 0.05  # between two refusals while no descriptor is free
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger(__name__)


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The largest numbers of connections."""

    total: int
    per_address: int
    # Every agent of this machine, its pods and our own processes come from there.
    per_loopback_address: int

    @classmethod
    def of_process(cls) -> Bounds:
        """Return bounds of half the descriptors; the others are for planes and their files."""
        total = max(64, descriptors.open_files() // 2)
        setting = os.environ.get(SETTING, "")
        per_client = int(setting) if setting.isdecimal() and int(setting) > 0 else 0
        return cls(
            total=total,
            per_address=per_client or min(1024, total // 2),
            per_loopback_address=per_client or max(1, total * 3 // 4),
        )

    def of(self, address: str) -> int:
        is_loopback = address.startswith("127.") or address in ("::1", "")
        return self.per_loopback_address if is_loopback else self.per_address


class ConnectionGate:
    """Counts connections, by address, from the moment they are accepted."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._by_address: Counter[str] = Counter()
        self._total = 0
        self.refused = 0

    def enter(self, address: str) -> Callable[[], None] | None:
        """Return the function to call when the connection has ended; None if it is refused."""
        count = self._by_address[address]
        if self._total >= self._bounds.total or count >= self._bounds.of(address):
            if not self.refused:
                log.warning("connection refused: too many", address=address, connections=count)
            self.refused += 1
            return None
        self._by_address[address] += 1
        self._total += 1
        entered = True

        def leave() -> None:
            nonlocal entered
            if entered:
                entered = False
                self._total -= 1
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]

        return leave


class Acceptor:
    """Accepts connections of one listening socket, until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[Callable[[], None]], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        gate: ConnectionGate,
    ) -> None:
        """`make` takes the function that its connection calls when it has ended."""
        self._listener, self._make, self._tls, self._gate = listener, make, tls, gate
        self._handshakes: set[asyncio.Task[None]] = set()
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        listener.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno not in _FULL:
                    await asyncio.sleep(_FULL_SECONDS)  # the client gave up, or the network is down
                    continue
                self._refuse_one(error)
                await asyncio.sleep(_FULL_SECONDS)
                continue
            address = str(peer[0]) if isinstance(peer, tuple) else ""
            leave = self._gate.enter(address)
            if leave is None:
                accepted.close()
                continue
            task = loop.create_task(self._connect(accepted, leave))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _refuse_one(self, error: OSError) -> None:
        """Take one connection with the descriptor in reserve, and close it."""
        log.warning("connection refused: no descriptor is free", error=error.strerror)
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        with contextlib.suppress(OSError):  # somebody else took it: the next time, then
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    async def _connect(self, accepted: socket.socket, leave: Callable[[], None]) -> None:
        connection = self._make(leave)
        loop = asyncio.get_running_loop()
        seconds = _HANDSHAKE_SECONDS if self._tls is not None else None
        try:
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            accepted.close()
            leave()

    def close(self) -> None:
        self._task.cancel()
        for task in self._handshakes:
            task.cancel()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
