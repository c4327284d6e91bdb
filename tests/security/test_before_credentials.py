"""What anybody can do to the address, without a credential: open connections and send heads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bidplane.http.server import accepting, connection
from bidplane.http.server.accepting import SETTING, Bounds, ConnectionGate
from bidplane.http.server.serve import serve
from bidplane.runtime.identity.certificates import ensure

FEW = Bounds(total=6, per_address=3, per_loopback_address=4)
REQUEST = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def _served(
    folder: Path, story: Callable[[Connect, int], Awaitable[None]], bounds: Bounds | None = None
) -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        certificates = ensure(folder, hosts=["127.0.0.1"], now=time.time())
        serving = asyncio.create_task(serve(_nothing, listener, certificates, bounds=bounds))
        trust = ssl.create_default_context(cafile=str(certificates.ca))

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", port, ssl=trust)

        try:
            async with asyncio.timeout(30):
                await story(connect, port)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(main())


def test_a_head_that_never_ends(tmp_path: Path) -> None:
    async def story(connect: Connect, port: int) -> None:
        reader, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 40 * connection.HEAD_BYTES and not reader.at_eof():
                writer.write(b"X-Filler: " + b"x" * 1000 + b"\r\n")
                sent += 1012
                await writer.drain()
                await asyncio.sleep(0)
        assert sent < 40 * connection.HEAD_BYTES
        writer.close()

    _served(tmp_path, story)


@pytest.mark.parametrize("header", [b"X-Large: " + b"x" * (64 << 10), b"X-S: y\r\n" * 9000])
def test_a_large_head_is_named(tmp_path: Path, header: bytes) -> None:
    async def story(connect: Connect, port: int) -> None:
        reader, writer = await connect()
        writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 431"), answer[:100]
        assert b"65536 bytes" in answer
        writer.close()

    _served(tmp_path, story)


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\n", b"\r\n"])
def test_a_head_that_does_not_come(
    tmp_path: Path, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)

    async def story(connect: Connect, port: int) -> None:
        reader, writer = await connect()
        writer.write(start)
        answer = await reader.read()
        assert b"HTTP/1.1 408" in answer
        writer.close()

    _served(tmp_path, story)


def test_a_handshake_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_HANDSHAKE_SECONDS", 0.05)

    async def story(connect: Connect, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()

    _served(tmp_path, story)


def test_connections_of_one_address_are_bounded(tmp_path: Path) -> None:
    async def story(connect: Connect, port: int) -> None:
        open_ones = [await connect() for _ in range(FEW.per_loopback_address)]
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await connect()
        for reader, writer in open_ones:  # those that are there are served
            writer.write(REQUEST)
            assert (await reader.readline()).startswith(b"HTTP/1.1 204")
        open_ones[0][1].close()
        await open_ones[0][1].wait_closed()
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    _, writer = await connect()
                    break
        for _, other in (*open_ones[1:], (None, writer)):
            other.close()

    _served(tmp_path, story, FEW)


def test_the_gate_counts_by_address() -> None:
    gate = ConnectionGate(FEW)
    leaves = [gate.enter("10.0.0.1") for _ in range(4)]
    assert [leave is not None for leave in leaves] == [True, True, True, False]
    assert leaves[0] is not None
    leaves[0]()
    leaves[0]()
    assert gate.enter("10.0.0.1") is not None
    assert gate.enter("10.0.0.1") is None, "leaving twice frees one place"
    assert [gate.enter("127.0.0.1") is not None for _ in range(4)] == [True] * 3 + [False], (
        "all addresses together have six"
    )


def test_the_bound_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "17")
    assert Bounds.of_process().of("127.0.0.1") == Bounds.of_process().of("10.0.0.1") == 17
    monkeypatch.setenv(SETTING, "many")
    assert Bounds.of_process().of("127.0.0.1") > 17


def test_a_full_table_of_descriptors_refuses_and_recovers(tmp_path: Path) -> None:
    async def story(connect: Connect, port: int) -> None:
        _, first = await connect()
        loop = asyncio.get_running_loop()
        clients = [socket.socket() for _ in range(3)]
        for client in clients:
            client.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        fillers: list[int] = []
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, hard)
        )
        try:
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.open(os.devnull, os.O_RDONLY))
            for client in clients:
                await loop.sock_connect(client, ("127.0.0.1", port))
            for client in clients:
                with contextlib.suppress(ConnectionError):
                    assert await loop.sock_recv(client, 1) == b"", "refused, not left waiting"
        finally:
            for descriptor in fillers:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for client in clients:
                client.close()
        reader, writer = await connect()
        writer.write(REQUEST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 204")
        writer.close()
        first.close()

    _served(tmp_path, story, Bounds(total=100, per_address=100, per_loopback_address=100))


@pytest.mark.parametrize("rest", [b"x" * (3 * connection.HEAD_BYTES), REQUEST])
def test_a_body_after_its_answer_gets_no_answer_of_its_own(tmp_path: Path, rest: bytes) -> None:
    """A second one, 431, was taken for that of the client's next request."""

    async def story(connect: Connect, port: int) -> None:
        reader, writer = await connect()
        writer.write(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n")
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 204")
        for start in range(0, len(rest), 1 << 14):
            writer.write(rest[start : start + (1 << 14)])
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(2 if len(rest) > connection.HEAD_BYTES else 0.2):
                assert await reader.read(1) == b""
        writer.close()

    _served(tmp_path, story)
