"""Slow, silent and vanished clients: each gives back what it holds."""

from __future__ import annotations

import asyncio

from .harness import GET, OK, answering, header, proxied, read_head, run

POST = b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n\r\n"


def test_a_slow_head_gets_408() -> None:
    async def check() -> None:
        async with proxied(answering(OK)) as setup:
            reader, writer = await setup.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost:")
            await asyncio.sleep(0.01)
            deadline = setup.client.deadline
            writer.write(b" a")
            await asyncio.sleep(0.01)
            assert setup.client.deadline == deadline  # a byte now and then gives no more time
            await setup.expire()
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")

    run(check())


def test_a_body_that_stops_gets_408_and_frees_the_backend() -> None:
    async def check() -> None:
        async with proxied(answering(OK), hold=True) as setup:
            reader, writer = await setup.connect()
            writer.write(POST + b"abc")
            await asyncio.sleep(0.01)
            await setup.expire()
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
            assert setup.ends == 1

    run(check())


def test_an_idle_connection_is_closed() -> None:
    async def check() -> None:
        async with proxied(answering(OK)) as setup:
            reader, writer = await setup.connect()
            writer.write(GET)
            await read_head(reader)
            await reader.readexactly(2)
            await setup.expire()
            assert await reader.read() == b""

    run(check())


def test_a_client_that_does_not_read_stops_its_backend_and_is_cut_off() -> None:
    async def check() -> None:
        written = 0

        async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            await read_head(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536

        async with proxied(endless) as setup:
            reader, writer = await setup.connect()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(GET)
            before = -1
            while before != written:
                before = written
                await asyncio.sleep(0.1)
            assert 0 < written < 64 << 20  # what kernel buffers take, and no more
            await setup.expire()  # the first time it may have read something
            await setup.expire()
            await asyncio.sleep(0.01)
            assert setup.ends == 1
            assert not setup.server.site.connections
            writer.transport.abort()

    run(check())


def test_a_backend_that_does_not_read_stops_its_client() -> None:
    async def check() -> None:
        async with proxied(answering(OK), hold=True) as setup:
            _, writer = await setup.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
            writer.write(b"x" * (32 << 20))
            await asyncio.sleep(0.2)
            assert setup.requests[0].buffered_size < 1 << 20
            writer.transport.abort()

    run(check())


def test_a_client_that_leaves_ends_its_request_everywhere() -> None:
    async def check() -> None:
        arrived, gone = asyncio.Event(), asyncio.Event()

        async def waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            arrived.set()
            await reader.read()
            gone.set()

        async with proxied(waiting) as setup:
            _, writer = await setup.connect()
            writer.write(GET)
            await arrived.wait()
            writer.close()
            await gone.wait()
            assert setup.ends == 1

    run(check())


def test_a_held_client_that_leaves_frees_its_place() -> None:
    async def check() -> None:
        async with proxied(answering(OK), hold=True) as setup:
            _, writer = await setup.connect()
            writer.write(GET)
            while not setup.requests:
                await asyncio.sleep(0.001)
            assert setup.ends == 0
            writer.close()
            while not setup.ends:
                await asyncio.sleep(0.001)

    run(check())


def test_forwarded_headers_of_strangers_are_replaced() -> None:
    async def check() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await read_head(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))

        request = (
            b"GET / HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 9.9.9.9\r\n"
            b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: other\r\n"
            b"Connection: close, X-Secret\r\nX-Secret: 1\r\nTE: trailers\r\n\r\n"
        )
        for trusted, expected in (
            (False, (b"127.0.0.1", b"http", b"a.example")),
            (True, (b"9.9.9.9, 127.0.0.1", b"https", b"other")),
        ):
            async with proxied(echo, trusted=trusted) as setup:
                head = (await setup.exchange(request)).partition(b"\r\n\r\n")[2]
                sent = tuple(
                    header(head, b"x-forwarded-" + name)[0] for name in (b"for", b"proto", b"host")
                )
                assert sent == expected
                assert len(header(head, b"x-forwarded-for")) == 1
                assert not header(head, b"x-secret")
                assert not header(head, b"te")
                assert not header(head, b"connection")

    run(check())
