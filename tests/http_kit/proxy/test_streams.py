"""Streams pass byte by byte in both directions: events, uploads, WebSockets, interim answers."""

from __future__ import annotations

import asyncio

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Request, TextMessage

from .harness import GET, OK, answering, header, proxied, read_head, run

CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_events_are_passed_on_as_they_come() -> None:
    async def check() -> None:
        ready = asyncio.Event()

        async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            for number in range(3):
                ready.clear()
                writer.write(b"9\r\ndata: %d\n\n\r\n" % number)
                await ready.wait()
            writer.write(b"0\r\n\r\n")

        async with proxied(events) as setup:
            reader, writer = await setup.connect()
            writer.write(GET)
            await read_head(reader)
            for number in range(3):
                assert await reader.readexactly(14) == b"9\r\ndata: %d\n\n\r\n" % number
                ready.set()
            assert await reader.readexactly(5) == b"0\r\n\r\n"

    run(check())


def test_an_upload_and_its_answer_stream_at_once() -> None:
    async def check() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                chunk = await reader.readuntil(b"\r\n")
                size = int(chunk, 16)
                writer.write(chunk + await reader.readexactly(size + 2))
                if not size:
                    return

        async with proxied(echo) as setup:
            reader, writer = await setup.connect()
            writer.write(CHUNKED)
            head = await read_head(reader)
            assert header(head, b"connection") == [b"close"]  # the body may never end
            for _ in range(3):
                writer.write(b"3\r\nabc\r\n")
                assert await reader.readexactly(8) == b"3\r\nabc\r\n"
            writer.write(b"0\r\n\r\n")
            assert await reader.readexactly(5) == b"0\r\n\r\n"

    run(check())


def test_a_large_body_arrives_whole_in_both_directions() -> None:
    async def check() -> None:
        size = 8 << 20

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            body = await reader.readexactly(size)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body)
            await writer.drain()

        body = bytes(range(256)) * (size // 256)
        async with proxied(echo) as setup:
            reader, writer = await setup.connect()
            writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + body)
            await read_head(reader)
            assert await reader.readexactly(size) == body

    run(check())


def test_trailers_pass_in_both_directions() -> None:
    async def check() -> None:
        received: list[bytes] = []

        async def backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            received.append(await reader.readuntil(b"0\r\n") + await reader.readuntil(b"\r\n\r\n"))
            writer.write(
                b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"2\r\nok\r\n0\r\nX-Sum: 7\r\nHost: evil\r\n\r\n"
            )

        async with proxied(backend) as setup:
            reader, writer = await setup.connect()
            writer.write(CHUNKED + b"3;note=1\r\nabc\r\n0\r\nX-Md5: 1\r\nHost: evil\r\n\r\n")
            head = await read_head(reader)
            assert header(head, b"trailer") == [b"X-Sum"]
            assert await reader.readexactly(7) == b"2\r\nok\r\n"
            assert await reader.readuntil(b"\r\n\r\n") == b"0\r\nX-Sum: 7\r\n\r\n"
        # A trailer is not a header: what decides about framing or routing is left out.
        assert received == [b"3\r\nabc\r\n0\r\nX-Md5: 1\r\n\r\n"]

    run(check())


def test_interim_answers_are_passed_on() -> None:
    async def check() -> None:
        async def backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await read_head(reader)
            assert header(head, b"expect") == [b"100-continue"]
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert await reader.readexactly(2) == b"hi"
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK)

        async with proxied(backend) as setup:
            reader, writer = await setup.connect()
            writer.write(
                b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            )
            assert await read_head(reader) == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hi")
            assert await read_head(reader) == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
            assert (await read_head(reader)).startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readexactly(2) == b"ok"

    run(check())


def test_an_http10_client_gets_a_body_that_ends_with_its_connection() -> None:
    async def check() -> None:
        answer = (
            b"HTTP/1.1 103 Early Hints\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        )
        async with proxied(answering(answer)) as setup:
            received = await setup.exchange(b"GET / HTTP/1.0\r\n\r\n")
            assert received == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"

    run(check())


def test_an_offer_of_http2_is_declined_and_the_request_served() -> None:
    async def check() -> None:
        async with proxied(answering(OK)) as setup:
            reader, writer = await setup.connect()
            for _ in range(2):
                writer.write(
                    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
                )
                head = await read_head(reader)
                assert head.startswith(b"HTTP/1.1 200")
                await reader.readexactly(2)
            lines = setup.requests[0].head.lines
            assert not any(line.lower().startswith((b"upgrade", b"http2")) for line in lines)

    run(check())


async def _echo_websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    server = WSConnection(ConnectionType.SERVER)
    while data := await reader.read(65536):
        server.receive_data(data)
        for event in server.events():
            if isinstance(event, Request):
                assert event.target == "/ws"
                writer.write(server.send(AcceptConnection()))
            elif isinstance(event, TextMessage | BytesMessage):
                writer.write(server.send(event))
            elif isinstance(event, CloseConnection):
                writer.write(server.send(event.response()))
                return


def test_a_websocket_passes_both_ways_and_ends_with_either_side() -> None:
    async def check() -> None:
        async with proxied(_echo_websocket) as setup:
            reader, writer = await setup.connect()
            client = WSConnection(ConnectionType.CLIENT)
            writer.write(client.send(Request(host="a.example", target="/ws")))
            client.receive_data(await read_head(reader))
            assert isinstance(next(iter(client.events())), AcceptConnection)
            writer.write(client.send(BytesMessage(data=b"x" * 200_000)))
            size = 0
            while size < 200_000:
                client.receive_data(await reader.read(65536))
                for event in client.events():
                    assert isinstance(event, BytesMessage)
                    size += len(event.data)
            assert setup.ends == 0
            writer.write(client.send(CloseConnection(code=1000)))
            client.receive_data(await reader.read())
            (closing,) = [e for e in client.events() if isinstance(e, CloseConnection)]
            assert closing.code == 1000
            assert setup.ends == 1
            writer.close()

    run(check())


def test_a_client_that_leaves_a_websocket_ends_it() -> None:
    async def check() -> None:
        ended = asyncio.Event()

        async def backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _echo_websocket(reader, writer)
            ended.set()

        async with proxied(backend) as setup:
            reader, writer = await setup.connect()
            client = WSConnection(ConnectionType.CLIENT)
            writer.write(client.send(Request(host="a.example", target="/ws")))
            await read_head(reader)
            writer.close()
            await ended.wait()
            while not setup.ends:
                await asyncio.sleep(0.001)

    run(check())


def test_a_declined_websocket_leaves_an_ordinary_connection() -> None:
    async def check() -> None:
        declined = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
        async with proxied(answering(declined)) as setup:
            reader, writer = await setup.connect()
            client = WSConnection(ConnectionType.CLIENT)
            writer.write(client.send(Request(host="a.example", target="/ws")) + GET)
            for _ in range(2):
                assert (await read_head(reader)).startswith(b"HTTP/1.1 403 ")
                assert await reader.readexactly(2) == b"no"

    run(check())


def test_a_stream_we_began_is_joined_by_the_backend() -> None:
    async def check() -> None:
        events = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Content-Length: 8\r\n\r\ndata: 1\n"
        )
        async with proxied(answering(events), hold=True) as setup:
            reader, writer = await setup.connect()
            writer.write(GET)
            while not setup.requests:
                await asyncio.sleep(0.001)
            (request,) = setup.requests
            request.start_stream([b"Content-Type: text/event-stream"], lambda text: b"error")
            assert header(await read_head(reader), b"transfer-encoding") == [b"chunked"]
            request.write_stream(b": waiting\n\n")
            assert await reader.readexactly(16) == b"b\r\n: waiting\n\n\r\n"
            setup.server.pool.forward(request, ("127.0.0.1", setup.backend))
            assert await reader.readexactly(18) == b"8\r\ndata: 1\n\r\n0\r\n\r\n"
            writer.write(GET)  # and the connection goes on
            while len(setup.requests) < 2:
                await asyncio.sleep(0.001)

    run(check())


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", OK, b""],
    ids=["an error", "not a stream", "no answer"],
)
def test_a_stream_we_began_fails_with_an_error_event_and_no_end(answer: bytes) -> None:
    async def check() -> None:
        async with proxied(answering(answer, close=True), hold=True) as setup:
            reader, writer = await setup.connect()
            writer.write(GET)
            while not setup.requests:
                await asyncio.sleep(0.001)
            (request,) = setup.requests
            request.start_stream([b"Content-Type: text/event-stream"], lambda text: b"data: no\n\n")
            await read_head(reader)
            setup.server.pool.forward(request, ("127.0.0.1", setup.backend))
            assert await reader.read() == b"a\r\ndata: no\n\n\r\n"
            assert setup.ends == 1

    run(check())
