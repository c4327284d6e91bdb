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


class LoadTarget(NamedTuple):
    """The address of a Kubernetes API, and a token for it."""

    port: int
    token: str
    prefix: str = ""  # of the path: /planes/NAME


class Rate(NamedTuple):
    """A throughput and its latencies."""

    per_second: float
    p50_ms: float
    p99_ms: float


class LoadConnection:
    """A keep-alive HTTP/1.1 connection over TLS."""

    def __init__(self, endpoint: LoadTarget) -> None:
        self._endpoint = endpoint

    async def open(self) -> None:
        # A new certificate on loopback: only the cost of TLS matters here, not trust.
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
        """Send a request; return the status code and the size of the body."""
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


async def rate(endpoint: LoadTarget, clients: int, seconds: float, *, write: bool) -> Rate:
    """Create or read small ConfigMaps as fast as they are answered."""
    times: list[float] = []
    connections = [LoadConnection(endpoint) for _ in range(clients)]
    for connection in connections:
        await connection.open()
    await connections[0].call("POST", MAPS, b'{"metadata":{"name":"one"},"data":{"k":"v"}}')
    begin = time.perf_counter()
    end = begin + seconds

    async def send_requests(connection: LoadConnection) -> None:
        while (start := time.perf_counter()) < end:
            if write:
                code, _ = await connection.call("POST", MAPS, _BODY)
            else:
                code, _ = await connection.call("GET", f"{MAPS}/one")
            if code not in (200, 201):
                raise RuntimeError(f"answered {code} under load")
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(send_requests(connection) for connection in connections))
    elapsed = time.perf_counter() - begin
    for connection in connections:
        await connection.close()
    times.sort()
    return Rate(
        len(times) / elapsed, times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3
    )


async def fan_out(endpoint: LoadTarget, watchers: int, writes: int) -> float:
    """
    The events per second delivered to watchers, from the first write until all have seen all
    events.
    """
    events_seen = 0
    all_seen, ready = asyncio.Event(), asyncio.Semaphore(0)

    async def watch() -> None:
        nonlocal events_seen
        connection = LoadConnection(endpoint)
        await connection.open()
        connection.send("GET", f"{SYSTEM_MAPS}?watch=1&resourceVersion={revision}")
        await connection.reader.readuntil(b"\r\n\r\n")
        ready.release()
        while chunk := await connection.reader.read(1 << 16):
            events_seen += chunk.count(b'"type":"ADDED"')
            if events_seen >= watchers * writes:
                all_seen.set()

    writer = LoadConnection(endpoint)
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
                async with asyncio.timeout(_LONGEST_SECONDS):
                    await ready.acquire()
        writer = LoadConnection(endpoint)
        await writer.open()
        begin = time.perf_counter()
        for _ in range(writes):
            code, _ = await writer.call("POST", SYSTEM_MAPS, _BODY)
            if code != 201:
                raise RuntimeError(f"answered {code} to a write")
        async with asyncio.timeout(_LONGEST_SECONDS):
            await all_seen.wait()
        return watchers * writes / (time.perf_counter() - begin)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await writer.close()


async def fill(endpoint: LoadTarget, objects: int) -> None:
    """Create that many small objects in kube-system, over eight connections."""

    async def create_objects(count: int) -> None:
        connection = LoadConnection(endpoint)
        await connection.open()
        for _ in range(count):
            await connection.call("POST", SYSTEM_MAPS, _BODY)
        await connection.close()

    await asyncio.gather(*(create_objects(objects // 8) for _ in range(8)))


async def list_ms(endpoint: LoadTarget, times: int = 5) -> float:
    """The median time of listing everything in kube-system, in one answer."""
    connection = LoadConnection(endpoint)
    await connection.open()
    times_ms = []
    for _ in range(times):
        begin = time.perf_counter()
        await connection.call("GET", SYSTEM_MAPS)
        times_ms.append((time.perf_counter() - begin) * 1e3)
    await connection.close()
    return sorted(times_ms)[len(times_ms) // 2]


async def first_answer_ms(endpoint: LoadTarget) -> float:
    """The time of one read over an open connection: how long a sleeping plane takes to wake."""
    connection = LoadConnection(endpoint)
    await connection.open()
    begin = time.perf_counter()
    code, _ = await connection.call("GET", "/api/v1/namespaces/default")
    elapsed_ms = (time.perf_counter() - begin) * 1e3
    await connection.close()
    if code != 200:
        raise RuntimeError(f"answered {code}")
    return elapsed_ms
