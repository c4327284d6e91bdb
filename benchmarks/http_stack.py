"""
Which HTTP stack a plane stands on: uvicorn, or a protocol of our own on httptools.

    python benchmarks/http_stack.py            all of it, about three minutes
    python benchmarks/http_stack.py memory     planes only

Both serve the same application with TLS, tokens, decoding, validation and durable group commit.
The load comes from a second process on the same machine; on two cores they share them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httptools
import uvicorn
import uvloop

from bidplane.api import crds
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import Identity, Tokens
from bidplane.testing.certificates import Authority

SECONDS = 2.0
ROUNDS = 5
WRITES = 20  # each seen by every watcher
SCENARIOS = (("creates", 8), ("creates", 32), ("reads", 8), ("reads", 32), ("events", 1000))
_KEY = b"benchmark-key-benchmark-key-bench"
_REASONS = {200: b"OK", 201: b"Created", 404: b"Not Found", 409: b"Conflict"}


# The protocol of our own: the least that can carry the application.


class Raw(asyncio.Protocol):
    def __init__(self, app: Planes) -> None:
        self._app = app
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    def _reset(self) -> None:
        self._url, self._body = b"", b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._started = False
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path, _, query = self._url.partition(b"?")
        scope = {
            "type": "http",
            "method": self._parser.get_method().decode(),
            "path": path.decode(),
            "raw_path": path,
            "query_string": query,
            "headers": self._headers,
        }
        asyncio.get_running_loop().create_task(self._serve(scope, self._body))

    async def _serve(self, scope: dict[str, Any], body: bytes) -> None:
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await self._gone
            return {"type": "http.disconnect"}

        await self._app(scope, receive, self._send)
        self._reset()

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            code = message["status"]
            head = [b"HTTP/1.1 %d %s" % (code, _REASONS.get(code, b"-"))]
            head += [b"%s: %s" % pair for pair in message["headers"]]
            self._chunked = not any(name == b"content-length" for name, _ in message["headers"])
            if self._chunked:
                head.append(b"transfer-encoding: chunked")
            self._head = b"\r\n".join(head) + b"\r\n\r\n"
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._chunked:
            body = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            body += b"" if more else b"0\r\n\r\n"
        self._transport.write(self._head + body)
        self._head = b""


# The server process.


async def _serve(stack: str, folder: Path, port: int) -> None:
    tokens = Tokens(_KEY)
    planes = Planes(
        folder / "planes", clock=SystemClock(), tokens=tokens, crds=lambda plane: crds.all_crds()
    )
    uid = await planes.create("bench")
    who = Identity(plane="bench", uid=uid, user="bench", expires=int(time.time()) + 3600)
    (folder / "token").write_text(tokens.issue(who))
    if stack == "uvicorn":
        config = uvicorn.Config(
            planes,
            host="127.0.0.1",
            port=port,
            ssl_certfile=str(folder / "server.crt"),
            ssl_keyfile=str(folder / "server.key"),
            http="httptools",
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            date_header=False,
            backlog=4096,
        )
        await uvicorn.Server(config).serve()
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Raw(planes), "127.0.0.1", port, ssl=context, backlog=4096
    )
    await server.serve_forever()


# The load.


class Client:
    """One keep-alive connection that sends what it is given and reads whole answers."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token

    async def open(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=context, limit=1 << 22
        )

    def send(self, method: str, path: str, body: bytes = b"") -> None:
        head = (
            f"{method} /planes/bench{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)

    async def call(self, method: str, path: str, body: bytes = b"") -> int:
        self.send(method, path, body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(head[9:12])


_MAPS = "/api/v1/namespaces/default/configmaps"
_BODY = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"x-"},"data":{"k":"%s"}}'


async def _rate(port: int, token: str, clients: int, *, write: bool) -> dict[str, Any]:
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    body = _BODY % (b"v" * 200)

    async def one() -> None:
        client = Client(port, token)
        await client.open()
        while (start := time.perf_counter()) < end:
            code = await (
                client.call("POST", _MAPS, body) if write else client.call("GET", f"{_MAPS}/one")
            )
            assert code in (200, 201), code
            times.append(time.perf_counter() - start)
        client.writer.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    times.sort()
    return {
        "per_second": round(len(times) / SECONDS),
        "p50_ms": round(times[len(times) // 2] * 1000, 1),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1000, 1),
    }


async def _fan_out(port: int, token: str, watchers: int, writes: int) -> dict[str, Any]:
    """How long until every watcher has seen every write."""
    seen = 0
    done = asyncio.Event()

    async def watch() -> None:
        nonlocal seen
        client = Client(port, token)
        await client.open()
        client.send("GET", "/api/v1/namespaces/kube-system/configmaps?watch=1&resourceVersion=0")
        await client.reader.readuntil(b"\r\n\r\n")
        ready.release()
        with contextlib.suppress(asyncio.CancelledError):
            while chunk := await client.reader.read(1 << 16):
                seen += chunk.count(b'"type":"ADDED"')
                if seen >= watchers * writes:
                    done.set()
        client.writer.close()

    ready = asyncio.Semaphore(0)
    tasks = []
    opening = time.perf_counter()
    for start in range(0, watchers, 50):  # a handshake each: bounded, so that none times out
        tasks += [asyncio.create_task(watch()) for _ in range(min(50, watchers - start))]
        for _ in range(min(50, watchers - start)):
            await ready.acquire()
    opened = time.perf_counter() - opening
    writer = Client(port, token)
    await writer.open()
    start = time.perf_counter()
    for _ in range(writes):
        code = await writer.call(
            "POST", "/api/v1/namespaces/kube-system/configmaps", _BODY % (b"v" * 200)
        )
        assert code == 201
    wrote = time.perf_counter() - start
    await asyncio.wait_for(done.wait(), 120)
    took = time.perf_counter() - start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks)
    return {
        "watchers": watchers,
        "open_seconds": round(opened, 1),
        "writes_per_second": round(writes / wrote),
        "events_per_second": round(watchers * writes / took),
    }


def _cpu(pid: int) -> float:
    """Seconds of processor time a process has used: less distorted by neighbours than rates."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Side(NamedTuple):
    stack: str
    port: int
    token: str
    pid: int


async def _measure(side: Side, clients: int, kind: str) -> tuple[float, float]:
    """Requests (or events) per second, and the server's processor time for one, in µs."""
    before = _cpu(side.pid)
    if kind == "events":
        found = await _fan_out(side.port, side.token, clients, WRITES)
        rate, count = found["events_per_second"], clients * WRITES
    else:
        found = await _rate(side.port, side.token, clients, write=kind == "creates")
        rate, count = found["per_second"], found["per_second"] * SECONDS
    return rate, (_cpu(side.pid) - before) / count * 1e6


async def _load(sides: list[Side]) -> None:
    """
    Each measurement on one side, then on the other, in turn and several times.

    One side after the other would compare two moments of a shared machine, not two stacks.
    """
    for side in sides:
        client = Client(side.port, side.token)
        await client.open()
        await client.call("POST", _MAPS, b'{"metadata":{"name":"one"},"data":{"k":"v"}}')
    for kind, clients in SCENARIOS:
        found: dict[str, list[tuple[float, float]]] = {side.stack: [] for side in sides}
        for number in range(ROUNDS):
            for side in sides if number % 2 else reversed(sides):
                found[side.stack].append(await _measure(side, clients, kind))
        for stack, results in found.items():
            rates, costs = sorted(r for r, _ in results), sorted(c for _, c in results)
            print(
                f"{kind:8} {clients:5} {stack:8}"
                f" {statistics.median(rates):7.0f}/s ({rates[0]:.0f}–{rates[-1]:.0f})"
                f" {statistics.median(costs):5.0f} µs ({costs[0]:.0f}–{costs[-1]:.0f})",
                flush=True,
            )


# Planes and memory.


async def _memory(folder: Path, count: int) -> None:
    tokens = Tokens(_KEY)
    planes = Planes(
        folder / "many", clock=SystemClock(), tokens=tokens, crds=lambda plane: crds.all_crds()
    )
    await planes.create("first")
    before, start = _rss(), time.perf_counter()
    for number in range(count):
        await planes.create(f"p{number}")
    took, after = time.perf_counter() - start, _rss()
    print(
        f"{count} planes, all open: {1000 * took / count:.1f} ms and"
        f" {(after - before) / count / 1024:.0f} KiB each"
    )
    await planes.close()


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@contextlib.contextmanager
def _server(stack: str, folder: Path, port: int) -> Iterator[int]:
    command = [sys.executable, __file__, "serve", stack, str(folder), str(port)]
    process = subprocess.Popen(command)
    try:
        while not (folder / "token").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["all"])
    what = parser.parse_args().what
    if what[0] == "serve":
        uvloop.run(_serve(what[1], Path(what[2]), int(what[3])))
        return
    print(f"{os.cpu_count()} cores, shared by the server and the load")
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as name:
        if what[0] in ("all", "memory"):
            uvloop.run(_memory(Path(name), 1000))
        if what[0] != "all":
            return
        with contextlib.ExitStack() as running:
            sides = []
            for stack in ("uvicorn", "raw"):
                folder = Path(name) / stack
                folder.mkdir()
                Authority(folder).issue_server("server")
                port = _free_port()
                pid = running.enter_context(_server(stack, folder, port))
                sides.append(Side(stack, port, (folder / "token").read_text(), pid))
            uvloop.run(_load(sides))


if __name__ == "__main__":
    main()
