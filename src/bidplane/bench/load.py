"""
Load on one Kubernetes API over TLS: as many keep-alive connections as clients, each with
one request at a time. The same bytes go to ours and to the peer's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import NamedTuple

MAPS = "/api/v1/namespaces/default/configmaps"
SYSTEM_MAPS = "/api/v1/namespaces/kube-system/configmaps"
_BODY = (
    b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"x-"},'
    b'"data":{"k":"' + b"v" * 200 + b'"}}'
)
_LONGEST_SECONDS = 120.0
_OPENED_AT_ONCE = 50  # TLS handshakes: bounded, so that none times out


class Endpoint(NamedTuple):
    port: int
    token: str
    prefix: str = ""  # of the path: /planes/NAME


class Rate(NamedTuple):
    per_second: float
    p50_ms: float
    p99_ms: float


class Connection:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def open(self) -> None:
        # Loopback, and a certificate made a moment ago: what is measured is its cost.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._endpoint.port, ssl=context, limit=1 << 26
        )

    def send(self, method: str, path: str, body: bytes = b"") -> None:
        head = (
            f"{method} {self._endpoint.prefix}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self._endpoint.token}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, int]:
        """The status code, and how many bytes came."""
        self.send(method, path, body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        code = int(head[9:12])
        if b"transfer-encoding: chunked" in head:
            return code, await self._chunks()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await self.reader.readexactly(length)
        return code, length

    async def _chunks(self) -> int:
        total = 0
        while length := int(await self.reader.readline(), 16):
            await self.reader.readexactly(length + 2)
            total += length
        await self.reader.readline()
        return total

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def rate(endpoint: Endpoint, clients: int, seconds: float, *, write: bool) -> Rate:
    """Creates of a small ConfigMap, or reads of one, as fast as they are answered."""
    times: list[float] = []
    connections = [Connection(endpoint) for _ in range(clients)]
    for connection in connections:
        await connection.open()
    await connections[0].call("POST", MAPS, b'{"metadata":{"name":"one"},"data":{"k":"v"}}')
    begin = time.perf_counter()
    end = begin + seconds

    async def one(connection: Connection) -> None:
        while (start := time.perf_counter()) < end:
            if write:
                code, _ = await connection.call("POST", MAPS, _BODY)
            else:
                code, _ = await connection.call("GET", f"{MAPS}/one")
            if code not in (200, 201):
                raise RuntimeError(f"answered {code} under load")
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(one(connection) for connection in connections))
    took = time.perf_counter() - begin
    for connection in connections:
        await connection.close()
    times.sort()
    return Rate(
        len(times) / took, times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3
    )


async def fan_out(endpoint: Endpoint, watchers: int, writes: int) -> float:
    """Events told per second, from the first write until every watcher has seen them all."""
    seen = 0
    done, ready = asyncio.Event(), asyncio.Semaphore(0)

    async def watch() -> None:
        nonlocal seen
        connection = Connection(endpoint)
        await connection.open()
        connection.send("GET", f"{SYSTEM_MAPS}?watch=1&resourceVersion={revision}")
        await connection.reader.readuntil(b"\r\n\r\n")
        ready.release()
        while chunk := await connection.reader.read(1 << 16):
            seen += chunk.count(b'"type":"ADDED"')
            if seen >= watchers * writes:
                done.set()

    writer = Connection(endpoint)
    await writer.open()
    writer.send("GET", f"{SYSTEM_MAPS}?limit=1")
    head = await writer.reader.readuntil(b'"resourceVersion":"')
    revision = int((await writer.reader.readuntil(b'"'))[:-1])
    del head
    await writer.close()
    tasks: list[asyncio.Task[None]] = []
    try:
        for start in range(0, watchers, _OPENED_AT_ONCE):
            batch = min(_OPENED_AT_ONCE, watchers - start)
            tasks += [asyncio.create_task(watch()) for _ in range(batch)]
            for _ in range(batch):
                await asyncio.wait_for(ready.acquire(), _LONGEST_SECONDS)
        writer = Connection(endpoint)
        await writer.open()
        begin = time.perf_counter()
        for _ in range(writes):
            code, _ = await writer.call("POST", SYSTEM_MAPS, _BODY)
            if code != 201:
                raise RuntimeError(f"answered {code} to a write")
        await asyncio.wait_for(done.wait(), _LONGEST_SECONDS)
        return watchers * writes / (time.perf_counter() - begin)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await writer.close()


async def fill(endpoint: Endpoint, objects: int) -> None:
    """So many small objects in kube-system, written by eight."""

    async def some(count: int) -> None:
        connection = Connection(endpoint)
        await connection.open()
        for _ in range(count):
            await connection.call("POST", SYSTEM_MAPS, _BODY)
        await connection.close()

    await asyncio.gather(*(some(objects // 8) for _ in range(8)))


async def list_ms(endpoint: Endpoint, times: int = 5) -> float:
    """The median of listing everything in kube-system, in one answer."""
    connection = Connection(endpoint)
    await connection.open()
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        await connection.call("GET", SYSTEM_MAPS)
        took.append((time.perf_counter() - begin) * 1e3)
    await connection.close()
    return sorted(took)[len(took) // 2]


async def first_answer_ms(endpoint: Endpoint) -> float:
    """One read over a connection that is open already: what a sleeper takes to wake."""
    connection = Connection(endpoint)
    await connection.open()
    begin = time.perf_counter()
    code, _ = await connection.call("GET", "/api/v1/namespaces/default")
    took = (time.perf_counter() - begin) * 1e3
    await connection.close()
    if code != 200:
        raise RuntimeError(f"answered {code}")
    return took
