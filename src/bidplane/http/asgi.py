"""The types of ASGI, and what an app does with a connection beside answering."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Under this name a server puts the client's verified certificate (DER) into a scope's `state`.
CLIENT_CERTIFICATE = "client_certificate"


async def lifespan(receive: Receive, send: Send) -> None:
    """Serve the scope `lifespan` of an app that has nothing to start or stop."""
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, None] | asyncio.Task[None]
) -> None:
    """
    Do `work` until it is done, or the client disconnects.

    A server silently accepts data for a client that is gone, so a stream without an end would go on
    for ever.
    """
    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({working, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if working.done() and not working.cancelled():
            working.result()
    finally:
        disconnect.cancel()
        working.cancel()
        await asyncio.gather(working, disconnect, return_exceptions=True)
