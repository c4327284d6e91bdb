"""Backends that reset, stall, answer nonsense, answer early or never close."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from bidplane.http.proxy.pool import BackendLimits

from .harness import GET, LAST_GET, OK, answering, header, proxied, read_head, run

GARBAGE = {
    "not HTTP": b"SSH-2.0-OpenSSH_9\r\n",
    "bare line feeds": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "length and coding": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
    "unknown coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
    "a switch nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n"
    b"Upgrade: websocket\r\n\r\n",
    "status 999": b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    "1 MiB header": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * (1 << 20) + b"\r\n\r\n",
    "1,000 headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    "only interim answers, then the end": b"HTTP/1.1 103 Early Hints\r\n\r\n",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nX-A: b\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_an_unusable_answer_is_502_with_its_reason(name: str) -> None:
    async def check() -> None:
        async with proxied(answering(GARBAGE[name], close=True)) as setup:
            received = await setup.exchange(LAST_GET)
            final = received[received.rindex(b"HTTP/1.1 ") :]
            if name == "only interim answers, then the end":
                assert received.startswith(b"HTTP/1.1 103 ")
            assert final.startswith(b"HTTP/1.1 502 ") or received.startswith(b"HTTP/1.1 502 ")
            assert b"backend" in received
            assert setup.ends == 1

    run(check())


CUT_OFF = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nsome",
    "garbage between chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"4\r\nsome\r\nzz\r\n",
}


@pytest.mark.parametrize("name", CUT_OFF)
def test_an_answer_that_breaks_off_never_looks_whole(name: str) -> None:
    async def check() -> None:
        async with proxied(answering(CUT_OFF[name], close=True)) as setup:
            reader, writer = await setup.connect()
            writer.write(GET)
            with pytest.raises(ConnectionResetError):
                await reader.read()

    run(check())


def test_a_reset_in_a_body_without_length_is_a_reset() -> None:
    async def check() -> None:
        async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
            await writer.drain()
            await asyncio.sleep(0.02)
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        async with proxied(reset) as setup:
            reader, writer = await setup.connect()
            writer.write(GET)
            with pytest.raises(ConnectionResetError):
                await reader.read()

    run(check())


def test_a_stalled_backend_is_504_and_its_connection_is_closed() -> None:
    async def check() -> None:
        closed = asyncio.Event()

        async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            await reader.read()
            closed.set()

        async with proxied(stall, backend_limits=BackendLimits(response_seconds=30)) as setup:
            reader, writer = await setup.connect()
            writer.write(LAST_GET)
            while not setup.requests or setup.requests[0].backend is None:
                await asyncio.sleep(0.001)
            await setup.expire()
            assert (await reader.read()).startswith(b"HTTP/1.1 504 ")
            await closed.wait()

    run(check())


def test_a_stall_in_a_body_resets_the_client() -> None:
    async def check() -> None:
        async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            writer.write(CUT_OFF["chunks"])
            await reader.read()

        async with proxied(stall) as setup:
            reader, writer = await setup.connect()
            writer.write(GET)
            await read_head(reader)
            await setup.expire()
            with pytest.raises(ConnectionResetError):
                await reader.read()

    run(check())


def test_an_unreachable_backend_is_502() -> None:
    async def check() -> None:
        async with proxied(answering(OK), hold=True) as setup:
            reader, writer = await setup.connect()
            writer.write(LAST_GET)
            while not setup.requests:
                await asyncio.sleep(0.001)
            setup.server.pool.forward(setup.requests[0], ("127.0.0.1", 1))
            received = await reader.read()
            assert received.startswith(b"HTTP/1.1 502 ")
            assert b"cannot be reached" in received

    run(check())


def test_connections_to_the_backend_are_reused() -> None:
    async def check() -> None:
        async with proxied(answering(OK)) as setup:
            for _ in range(5):
                assert (await setup.exchange(LAST_GET)).endswith(b"ok")
            assert setup.connections == 1

    run(check())


def test_bytes_behind_an_answer_end_its_connection() -> None:
    async def check() -> None:
        async with proxied(
            answering(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        ) as s:
            for _ in range(3):
                received = await s.exchange(LAST_GET)
                assert received.endswith(b"ok")
                assert b"evil" not in received
            assert s.connections == 3

    run(check())


def test_a_body_for_a_head_request_is_not_read_as_an_answer() -> None:
    async def check() -> None:
        async with proxied(answering(OK)) as setup:
            for _ in range(2):
                received = await setup.exchange(
                    b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
                )
                assert header(received, b"content-length") == [b"2"]
                assert received.endswith(b"\r\n\r\n")
            assert setup.connections == 2

    run(check())


def test_a_request_is_sent_again_when_its_idle_connection_had_ended() -> None:
    async def check() -> None:
        async def one_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            writer.write(OK)
            await writer.drain()
            await read_head(reader)  # the second request arrives as the connection ends
            writer.transport.abort()

        async with proxied(one_each) as setup:
            for _ in range(4):
                assert (await setup.exchange(LAST_GET)).endswith(b"ok")
            assert setup.connections == 4

    run(check())


def test_a_request_that_may_not_repeat_is_not_sent_again() -> None:
    async def check() -> None:
        bodies = []

        async def one_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in (OK, b""):
                await read_head(reader)
                bodies.append(await reader.readexactly(1))
                writer.write(answer)
                await writer.drain()
            writer.transport.abort()

        post = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\n"
        async with proxied(one_each) as setup:
            assert (await setup.exchange(post + b"1")).endswith(b"ok")
            received = await setup.exchange(post + b"2")  # at once, on the same connection
            assert received.startswith(b"HTTP/1.1 502 ")
            assert bodies == [b"1", b"2"]
            # Later it takes a connection of its own: the old one may be ending.
            assert (await setup.exchange(post + b"3")).endswith(b"ok")
            setup.server.pool.now = lambda: asyncio.get_running_loop().time() + 2
            assert (await setup.exchange(post + b"4")).endswith(b"ok")
            assert setup.connections == 3

    run(check())


def test_an_early_answer_ends_the_upload() -> None:
    async def check() -> None:
        refusal = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"
        async with proxied(answering(refusal)) as setup:
            reader, writer = await setup.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nsome")
            received = await reader.read()
            assert received.startswith(b"HTTP/1.1 413 ")
            assert header(received, b"connection") == [b"close"]
            assert setup.ends == 1

    run(check())
