"""Serving an ASGI app over TLS on a socket that is already bound."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn

from bidplane.errors import UserError
from bidplane.runtime.certificates import Certificates
from bidplane.runtime.connection import Connection

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

# Open watches end at once: their clients resume, by design.
_GOODBYE_SECONDS = 1


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `UserError` when the port is taken."""
    try:
        # The backlog holds clients while the process behind it restarts.
        return socket.create_server((host, port), backlog=1024)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen on {host}:{port}: {why}; choose another with --port,"
            " or --port 0 for any free one"
        ) from error


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """
    Do `work` until it is done, or the client has gone.

    A server takes what is sent to a client that has gone without a word, so a stream
    without an end would be made for ever.
    """
    working = asyncio.create_task(work)
    going = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait({working, going}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        going.cancel()
        await asyncio.gather(working, going, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process decides when to stop, not each of its servers."""
        yield


async def serve(
    app: Any,
    listener: socket.socket,
    certificates: Certificates,
    *,
    client_ca: Path | None = None,
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
            http=Connection,
            ws="none",  # switching protocols is the app's: see `connection`
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
            timeout_keep_alive=75,
            proxy_headers=False,  # nobody stands between us and our clients
            server_header=False,
            date_header=False,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise
