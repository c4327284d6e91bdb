"""Messages that two parsers could read in two ways, or that are too large: refused by name."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.http.server.accepting import Bounds

from .harness import GET, LAST_GET, OK, answering, proxied, run

POST = b"POST / HTTP/1.1\r\nHost: a.example\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = {
    "length and coding": (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "coding and length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", 400),
    "one length twice": (POST + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "list of lengths": (POST + b"Content-Length: 4, 4\r\n\r\nabcd", 400),
    "signed length": (POST + b"Content-Length: +4\r\n\r\nabcd", 400),
    "negative length": (POST + b"Content-Length: -4\r\n\r\nabcd", 400),
    "hexadecimal length": (POST + b"Content-Length: 0x4\r\n\r\nabcd", 400),
    "huge length": (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    "empty length": (POST + b"Content-Length: \r\n\r\n", 400),
    "unknown coding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "coding behind chunked": (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n", 400),
    "coding before chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "coding twice": (
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "coding behind a tab": (POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "coding in quotes": (POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', 501),
    "coding in HTTP/1.0": (
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "space before the colon": (POST + b"Content-Length : 4\r\n\r\nabcd", 400),
    "folded header": (POST + b"X-A: 1\r\n Content-Length: 4\r\n\r\nabcd", 400),
    "folded coding": (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare line feed in a header": (b"GET / HTTP/1.1\r\nHost: a\nX-A: b\r\n\r\n", 400),
    "bare carriage return": (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\rX-B: c\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\x00c\r\n\r\n", 400),
    "NUL in a name": (b"GET / HTTP/1.1\r\nHost: a\r\nX\x00A: b\r\n\r\n", 400),
    "empty name": (b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 400),
    "chunk size too large": (CHUNKED + b"fffffffffffffffff\r\na", 400),
    "negative chunk size": (CHUNKED + b"-1\r\na", 400),
    "chunk size in 0x": (CHUNKED + b"0x1\r\na\r\n0\r\n\r\n", 400),
    "space behind a chunk size": (CHUNKED + b"1 \r\na\r\n0\r\n\r\n", 400),
    "chunks by line feeds": (CHUNKED + b"1\na\n0\n\n", 400),
    "line feed in an extension": (CHUNKED + b"1;a\nb\r\na\r\n0\r\n\r\n", 400),
    "chunk without its end": (CHUNKED + b"1\r\nab\r\n0\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "host with a path": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    "host with a user": (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    "two hosts in one": (b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    "another host in the target": (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "another scheme": (b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "space in the target": (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "tab in the target": (b"GET /\tb HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "fragment": (b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "dot segments": (b"GET /public/../admin HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "quoted dot segments": (b"GET /public/%2e%2E/admin HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "Connection takes the host": (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: host\r\n\r\n", 400),
    "Connection takes credentials": (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, Authorization\r\n\r\n",
        400,
    ),
    "CONNECT": (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 501),
    "unknown method": (b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "unknown expectation": (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: a-miracle\r\n\r\n", 417),
    "gRPC": (POST + b"Content-Type: application/grpc+proto\r\nContent-Length: 0\r\n\r\n", 501),
    "1 MiB header": (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * (1 << 20) + b"\r\n\r\n", 431),
    "1 MiB target": (b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
    "1 MiB header name": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a" * (1 << 20), 431),
    "too many headers": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 300 + b"\r\n", 431),
    "1 MiB chunk extension": (CHUNKED + b"1;" + b"a" * (1 << 20) + b"\r\na\r\n0\r\n\r\n", 400),
    "1 MiB of trailers": (CHUNKED + b"0\r\nX-A: " + b"a" * (1 << 20) + b"\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_ambiguous_or_oversized_request_is_refused_by_name(name: str) -> None:
    data, status = REFUSED[name]

    async def check() -> None:
        smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n"
        async with proxied(answering(OK)) as setup:
            received = await setup.exchange(data + (b"" if len(data) > 9999 else smuggled))
            assert received.startswith(b"HTTP/1.1 %d " % status), received[:300]
            head, _, text = received.partition(b"\r\n\r\n")
            assert len(text) > 8, "the refusal says why"
            assert b"Connection: close" in head
            assert b"HTTP/1.1 200" not in text, "one answer only"
            assert not any(r.head.target == b"/smuggled" for r in setup.requests)

    run(check())


def test_a_refused_body_cancels_its_request_at_the_backend() -> None:
    async def check() -> None:
        seen = asyncio.Event()
        ended = asyncio.Event()

        async def backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.set()
            await reader.read()
            ended.set()

        async with proxied(backend) as setup:
            reader, writer = await setup.connect()
            writer.write(CHUNKED + b"1\r\na\r\n")
            await seen.wait()
            writer.write(b"not a chunk\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            await ended.wait()
            assert setup.ends == 1

    run(check())


def test_http2_is_refused_with_its_own_error() -> None:
    async def check() -> None:
        async with proxied(answering(OK)) as setup:
            received = await setup.exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9)
            settings, goaway = received[:9], received[9:]
            assert settings == b"\0\0\0\x04\0\0\0\0\0"
            assert goaway[3] == 7  # GOAWAY
            assert goaway[13:17] == b"\0\0\0\x0d"  # HTTP_1_1_REQUIRED
            assert goaway[17:] == b"HTTP/2 is not served here: use HTTP/1.1"
            assert int.from_bytes(goaway[:3]) == len(goaway) - 9
            assert not setup.requests

    run(check())


def test_requests_ahead_of_their_answers_are_bounded() -> None:
    async def check() -> None:
        async with proxied(answering(OK), hold=True) as setup:
            reader, writer = await setup.connect()
            writer.write(GET * 1000)
            await asyncio.sleep(0.05)
            assert len(setup.requests) == 1  # one at a time
            for _ in range(16):
                setup.requests[-1].answer(200, "x")
            received = await reader.read()
            assert received.count(b"HTTP/1.1 200 OK") == 16
            assert setup.ends == len(setup.requests) == 16
            writer.close()

    run(check())


def test_connections_are_bounded() -> None:
    async def check() -> None:
        bounds = Bounds(total=2, per_address=2, per_loopback_address=2)
        async with proxied(answering(OK), bounds=bounds) as setup:
            first, _ = [await setup.connect() for _ in range(2)]
            assert await setup.exchange(GET) == b""
            first[1].close()
            await first[0].read()
            await asyncio.sleep(0.01)
            assert (await setup.exchange(LAST_GET)).startswith(b"HTTP/1.1 200")

    run(check())
