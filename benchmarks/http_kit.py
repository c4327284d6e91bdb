"""
What the HTTP kit costs, beside libraries that do the same.

    python benchmarks/http_kit.py            half a minute

*serving*: one request read and answered in memory, without a socket, with what a plane's read
looks at: ours and starlette's classes. *calling*: small GETs over TLS on loopback, one after the
other: `Connections`, and `HttpCaller`, which is httpx2. Starlette comes with the extra `mcp`.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote

import starlette.requests
import starlette.responses
import uvloop

from bidplane.http.asgi import Message, Receive, Scope, Send
from bidplane.http.client.caller import HttpCaller, trust
from bidplane.http.client.connections import Connections
from bidplane.http.replies import Reply, send_reply
from bidplane.http.request import Request
from bidplane.http.server.serve import serve
from bidplane.runtime.identity import certificates

ROUNDS = 7
REQUESTS = 20_000
CALLS = 1_500
PATH = "/planes/agent/api/v1/namespaces/default/configmaps/settings"
BODY = b'{"kind":"ConfigMap","data":{"key":"' + b"x" * 200 + b'"}}'
SCOPE: Scope = {
    "type": "http",
    "method": "GET",
    "path": PATH,
    "raw_path": PATH.encode(),
    "query_string": b"resourceVersion=0&timeoutSeconds=30",
    "headers": [
        (b"host", b"127.0.0.1:6443"),
        (b"user-agent", b"kubectl/v1.36"),
        (b"accept", b"application/json"),
        (b"authorization", b"Bearer " + b"t" * 200),
    ],
}


async def ours(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    if request.path.startswith("/planes/") and request.bearer and not request.flag("watch"):
        await send_reply(send, Reply(BODY))


async def with_starlette(scope: Scope, receive: Receive, send: Send) -> None:
    request = starlette.requests.Request(scope, receive)
    _, _, token = request.headers.get("authorization", "").partition(" ")
    path = unquote(request.scope["raw_path"].decode("latin-1"))
    if path.startswith("/planes/") and token and request.query_params.get("watch") != "true":
        response = starlette.responses.Response(BODY, media_type="application/json")
        await response(scope, receive, send)


async def _nothing(message: Message) -> None:
    pass


async def _receive() -> Message:
    return {"type": "http.request"}


async def _served(app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> float:
    """Microseconds of one request."""
    began = time.process_time()
    for _ in range(REQUESTS):
        await app(dict(SCOPE), _receive, _nothing)
    return (time.process_time() - began) / REQUESTS * 1e6


async def _called(call: Callable[[], Awaitable[object]]) -> float:
    """Microseconds of one call, of this process and of the server in it."""
    began = time.process_time()
    for _ in range(CALLS):
        await call()
    return (time.process_time() - began) / CALLS * 1e6


def _line(name: str, figures: list[float]) -> None:
    middle, low, high = statistics.median(figures), min(figures), max(figures)
    print(f"{name:34} {middle:7.1f} µs CPU ({low:.1f}–{high:.1f})")


async def _serving() -> None:
    figures: dict[str, list[float]] = {"ours": [], "starlette": []}
    for _ in range(ROUNDS):
        figures["ours"].append(await _served(ours))
        figures["starlette"].append(await _served(with_starlette))
    for name, values in figures.items():
        _line(f"a request served, {name}", values)


async def _calling(folder: Path) -> None:
    files = certificates.ensure(folder, hosts=["127.0.0.1"], now=time.time())
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    serving = asyncio.create_task(serve(ours, listener, files))
    trusted = trust(ca_file=str(files.ca))
    connections = Connections(url, trusted, timeout=30)
    caller = HttpCaller(url, trust=trusted)
    headers = {"Authorization": "Bearer " + "t" * 200}
    figures: dict[str, list[float]] = {"Connections": [], "HttpCaller (httpx2)": []}
    for _ in range(ROUNDS):
        figures["Connections"].append(
            await _called(lambda: connections.call("GET", PATH, headers, None))
        )
        figures["HttpCaller (httpx2)"].append(
            await _called(lambda: caller.call("GET", PATH, headers=headers))
        )
    connections.close()
    await caller.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    for name, values in figures.items():
        _line(f"a call, {name}", values)


async def main() -> None:
    await _serving()
    with tempfile.TemporaryDirectory() as folder:
        await _calling(Path(folder))


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
