"""Serving an ASGI app over TLS on a socket that is already bound."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import uvicorn

from bidplane.errors import UserError
from bidplane.http.asgi import App
from bidplane.http.server.accepting import Acceptor, Bounds, ConnectionGate
from bidplane.http.server.connection import HttpConnection

# Open watches end at once: their clients resume, by design.
_GOODBYE_SECONDS = 1


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise `UserError` when the port is taken."""
    try:
        # The backlog holds clients while the process behind it restarts.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen on {host}:{port}: {reason}; choose another with --port,"
            " or --port 0 for any free one"
        ) from error


def bind_near(host: str, ports: Iterable[int]) -> socket.socket:
    """Return a listening socket on the first of `ports` that is free, or on any other."""
    for port in ports:
        with contextlib.suppress(UserError):
            return bind(host, port)
    return bind(host, 0)


def bind_shared(listener: socket.socket, count: int) -> list[socket.socket]:
    """
    Return `count` listening sockets in place of one: connections are spread over them.

    That one showed that nobody else has the address; it is closed.
    """
    address, family = listener.getsockname(), listener.family
    listener.close()
    return [
        socket.create_server(address[:2], family=family, backlog=1024, reuse_port=True)
        for _ in range(count)
    ]


class TlsFiles(Protocol):
    """The paths of a server's certificate and key, and of the authority that signed it."""

    @property
    def ca(self) -> Path: ...

    @property
    def certificate(self) -> Path: ...

    @property
    def key(self) -> Path: ...


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, bounds: Bounds) -> None:
        super().__init__(config)
        self.bounds = bounds

    acceptors: Sequence[Acceptor] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, with bounds on connections; see `accepting`."""
        gate = ConnectionGate(self.bounds)

        def make(on_lost: Callable[[], None]) -> HttpConnection:
            connection = HttpConnection(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            connection.on_lost = on_lost
            return connection

        self.servers = []
        tls = self.config.ssl
        self.acceptors = [Acceptor(listener, make, tls, gate) for listener in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self.acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: the process decides when to stop, not each of its servers."""
        yield


async def serve(
    app: App,
    listener: socket.socket,
    certificates: TlsFiles,
    *,
    client_ca: Path | None = None,
    bounds: Bounds | None = None,
) -> None:
    """Serve until cancelled. `client_ca` signs for clients, if the servers' own does not."""
    server = _Server(
        uvicorn.Config(
            app,
            ssl_certfile=str(certificates.certificate),
            ssl_keyfile=str(certificates.key),
            # Asked for, not demanded: a token does as well. A bad one ends the handshake.
            ssl_ca_certs=str(client_ca or certificates.ca),
            ssl_cert_reqs=ssl.CERT_OPTIONAL,
            http=HttpConnection,
            ws="none",  # switching protocols is the app's: see `connection`
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
            timeout_keep_alive=75,
            proxy_headers=False,  # nobody stands between us and our clients
            server_header=False,
            date_header=False,
        ),
        bounds or Bounds.of_process(),
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise
