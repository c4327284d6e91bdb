"""The same exchanges direct, through us and through nginx; and clients other people wrote."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from .harness import proxied, read_head, run

_HOP = {b"connection", b"transfer-encoding", b"keep-alive", b"date", b"server"}
ANSWERS = {
    b"/length": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Twice: 1\r\nX-Twice: 2\r\n"
    b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 5\r\n\r\nhello",
    b"/chunked": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    b"/until-close": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello",
    b"/empty": b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
    b"/unchanged": b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nContent-Length: 99\r\n\r\n',
    b"/moved": b"HTTP/1.1 302 Found\r\nLocation: /length?a=%20b\r\nContent-Length: 0\r\n\r\n",
    b"/error": b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno",
    b"/large": b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + bytes(range(250)) * 1200,
    b"/odd-reason": b"HTTP/1.1 299 Quite Fine\r\nContent-Length: 0\r\n\r\n",
}
REQUESTS = {
    **{name.decode(): b"GET %b HTTP/1.1\r\nHost: a.example\r\n" % name for name in ANSWERS},
    "head of a length": b"HEAD /length HTTP/1.1\r\nHost: a.example\r\n",
    "head of chunks": b"HEAD /chunked HTTP/1.1\r\nHost: a.example\r\n",
    "query": b"GET /echo?a=1&b=%2F%20%ff&c HTTP/1.1\r\nHost: a.example\r\nCookie: a=1; b=2\r\n",
    "quoted path": b"GET /echo/%41%2fb//c;d=1 HTTP/1.1\r\nHost: a.example\r\n",
    "accept twice": b"GET /echo HTTP/1.1\r\nHost: a.example\r\nAccept: a\r\nAccept: b\r\n",
    "latin-1 value": b"GET /echo HTTP/1.1\r\nHost: a.example\r\nX-A: caf\xe9\r\n",
    "absolute form": b"GET http://a.example/echo?x HTTP/1.1\r\nHost: a.example\r\n",
    "options": b"OPTIONS /echo HTTP/1.1\r\nHost: a.example\r\nOrigin: http://b\r\n",
    "delete": b"DELETE /echo HTTP/1.1\r\nHost: a.example\r\n",
}
BODIES = {
    "post": b"POST /echo HTTP/1.1\r\nHost: a.example\r\nContent-Length: 7\r\nConnection: close\r\n"
    b'\r\n{"a":1}',
    "chunks": b"PUT /echo HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
}
RAW = {name: head + b"Connection: close\r\n\r\n" for name, head in REQUESTS.items()} | BODIES


async def catalogue(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer from the table, or with the request as it arrived; close after each."""
    head = await read_head(reader)
    method, target, _ = head.split(b" ", 2)
    answer = ANSWERS.get(target)
    if answer is not None:
        head_only = method == b"HEAD" or answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 304"))
        answer = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if head_only else answer
        writer.write(answer)
    else:
        body = await _body(head, reader)
        lines = head.split(b"\r\n")
        own = (b"x-forwarded", b"connection", b"transfer-encoding", b"content-length")
        rest = sorted(line for line in lines[1:] if line and not line.lower().startswith(own))
        path = target.removeprefix(b"http://a.example")
        echo = method + b" " + path + b"\n" + b"\n".join(rest) + b"\n\n" + body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(echo) + echo)
    await writer.drain()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        return body
    _, separator, rest = lower.partition(b"content-length:")
    return await reader.readexactly(int(rest.split(b"\r\n")[0])) if separator else b""


async def _ask(port: int, data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return the status line, the headers without those of the connection, and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(data)
    received = await reader.read(-1)
    writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    names = {line.partition(b":")[0].lower() for line in lines[1:]}
    if b"transfer-encoding" in names and body:
        rest, body = body, b""
        while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
            start = rest.index(b"\r\n") + 2
            body, rest = body + rest[start : start + size], rest[start + size + 2 :]
        assert rest == b"0\r\n\r\n"
    kept = [line for line in lines[1:] if line.partition(b":")[0].lower() not in _HOP]
    return lines[0], kept, body


def test_an_exchange_is_the_same_direct_and_through_us() -> None:
    async def check() -> None:
        async with proxied(catalogue) as setup:
            for name, data in RAW.items():
                direct = await _ask(setup.backend, data)
                assert await _ask(setup.proxy, data) == direct, name

    run(check())


@contextlib.asynccontextmanager
async def nginx(backend: int, folder: Path) -> AsyncIterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;"
        f"events {{}} http {{ access_log off; client_body_temp_path {folder}/body;"
        f" proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;"
        f" uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;"
        f" server {{ listen 127.0.0.1:{port}; location / {{"
        f" proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1;"
        ' proxy_set_header Host $host; proxy_set_header Connection ""; } } }'
    )
    process = await asyncio.create_subprocess_exec("nginx", "-c", str(config), "-p", str(folder))
    try:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            assert process.returncode is None, (folder / "error.log").read_text()
            await asyncio.sleep(0.02)
        yield port
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx to compare with")
def test_status_and_body_are_those_nginx_passes_on(tmp_path: Path) -> None:
    async def check() -> None:
        async with proxied(catalogue) as setup, nginx(setup.backend, tmp_path) as port:
            for name, data in RAW.items():
                theirs, ours = await _ask(port, data), await _ask(setup.proxy, data)
                assert ours[0] == theirs[0], name
                assert ours[2] == theirs[2], name

    run(check())


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_reads_what_it_reads_directly() -> None:
    async def check() -> None:
        async with proxied(catalogue) as setup:
            url = f"http://127.0.0.1:{setup.proxy}"
            options = (
                ("--http2", f"{url}/chunked"),
                ("--http1.0", f"{url}/chunked"),
                ("-d", "x" * 2000, "-H", "Expect: 100-continue", f"{url}/echo"),
                ("-T", "-", "-H", "Transfer-Encoding: chunked", f"{url}/echo"),
            )
            for option in options:
                process = await asyncio.create_subprocess_exec(
                    "curl", "-sS", "-m", "10", *option, stdin=-1, stdout=-1
                )
                output, _ = await process.communicate(b"upload")
                assert process.returncode == 0
                assert output.startswith((b"hello world", b"POST /echo", b"PUT /echo"))

    run(check())


def test_httpx_keeps_its_connection() -> None:
    async def check() -> None:
        async with (
            proxied(catalogue) as setup,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{setup.proxy}") as client,
        ):
            for path in ("/length", "/chunked", "/until-close", "/large", "/empty"):
                answer = await client.get(path)
                assert answer.content in ANSWERS[path.encode()] or path == "/chunked"
            answer = await client.post("/echo", content=b"x" * 100_000)
            assert answer.content.endswith(b"x" * 100_000)
            assert len(setup.server.site.connections) == 1

    run(check())
