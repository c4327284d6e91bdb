"""Connections that switch protocols, and clients that show a certificate, over real TLS."""

import asyncio
import contextlib
import ssl
import time

import pytest
import uvloop
from cryptography import x509

from bidplane.http.asgi import CLIENT_CERTIFICATE
from bidplane.http.extensions import switching, upgrade_of
from bidplane.http.server.serve import bind, serve
from bidplane.runtime.identity import certificates
from bidplane.testing.certificates import Authority

PATIENCE = 20.0
ASK = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: Echo\r\n\r\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return certificates.ensure(folder, hosts=["127.0.0.1"], now=time.time())


class App:
    """Echoes what it is sent after an upgrade to `echo`; refuses all other."""

    def __init__(self):
        self.asked, self.taken, self.ended = [], asyncio.Event(), asyncio.Event()
        self.scopes = []
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        upgrade = upgrade_of(scope)
        self.asked.append(upgrade and upgrade.protocol)
        if upgrade is None or upgrade.protocol != "echo":
            length = (b"content-length", b"2")
            await send({"type": "http.response.start", "status": 400, "headers": [length]})
            await send({"type": "http.response.body", "body": b"no"})
            return
        reader, writer = upgrade.take()
        writer.write(switching([("Connection", "Upgrade"), ("Upgrade", "echo")]))
        self.taken.set()
        try:
            await self.may_read.wait()
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
            self.ended.set()


class Server:
    def __init__(self, files, **options):
        self.app, self._files, self._options = App(), files, options

    async def __aenter__(self):
        self._listener = bind("127.0.0.1", 0)
        self.task = asyncio.create_task(
            serve(self.app, self._listener, self._files, **self._options)
        )
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self._listener.close()

    async def connect(self, certificate=None):
        tls = ssl.create_default_context(cafile=str(self._files.ca))
        if certificate:
            tls.load_cert_chain(*map(str, certificate))
        return await asyncio.open_connection("127.0.0.1", self._listener.getsockname()[1], ssl=tls)


def told(story, files, **options):
    async def whole():
        async with asyncio.timeout(PATIENCE), Server(files, **options) as server:
            await story(server)

    uvloop.run(whole())


async def head(reader):
    return (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]


def test_a_taken_connection_is_the_apps_both_ways(files):
    async def story(server):
        reader, writer = await server.connect()
        # What is sent with the request belongs to the other protocol already.
        writer.write(ASK + b"early")
        assert await head(reader) == b"HTTP/1.1 101 Switching Protocols"
        assert await reader.readexactly(5) == b"early"
        large = bytes(range(256)) * 4096
        writer.write(large)
        assert await reader.readexactly(len(large)) == large
        writer.close()
        await server.app.ended.wait()

    told(story, files)


def test_a_refused_upgrade_is_an_ordinary_answer_and_the_end(files):
    async def story(server):
        reader, writer = await server.connect()
        writer.write(ASK.replace(b"Echo", b"h2c") + b"GET /smuggled HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.endswith(b"no")
        assert server.app.asked == ["h2c"]
        writer.close()

    told(story, files)


def test_ordinary_requests_are_as_ever(files):
    async def story(server):
        reader, writer = await server.connect()
        for _ in range(2):
            writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await head(reader) == b"HTTP/1.1 400 Bad Request"
            assert await reader.readexactly(2) == b"no"
        writer.write(b"nonsense\r\n\r\n")
        assert await head(reader) == b"HTTP/1.1 400 Bad Request"
        writer.close()
        assert server.app.asked == [None, None]

    told(story, files)


def test_who_does_not_read_is_not_read_for(files):
    """A taker that is slow holds the sender, not the memory."""

    async def story(server):
        server.app.may_read.clear()
        reader, writer = await server.connect()
        writer.write(ASK)
        await server.app.taken.wait()
        await head(reader)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 << 20:
                writer.write(b"x" * (1 << 20))
                sent += 1 << 20
                async with asyncio.timeout(0.3):
                    await writer.drain()
        assert sent < 64 << 20
        server.app.may_read.set()
        got = 0
        while got < sent:
            got += len(await reader.read(1 << 20))
        writer.close()

    told(story, files)


def test_stopping_the_server_ends_what_was_taken(files):
    async def story(server):
        reader, writer = await server.connect()
        writer.write(ASK)
        await head(reader)
        server.task.cancel()
        await server.app.ended.wait()
        assert await reader.read() == b""
        writer.close()

    told(story, files)


def test_a_certificate_names_the_client(files, tmp_path):
    trusted, stranger = tmp_path / "trusted", tmp_path / "stranger"
    for folder in (trusted, stranger):
        folder.mkdir()
    authority = Authority(trusted)

    async def story(server):
        shown = authority.issue_client("api", user="kube-apiserver", group="system:masters")
        for certificate, expected in ((shown, "CN=kube-apiserver"), (None, None)):
            reader, writer = await server.connect(certificate)
            writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
            await head(reader)
            writer.close()
            der = server.app.scopes[-1]["state"].get(CLIENT_CERTIFICATE)
            if expected:
                assert expected in x509.load_der_x509_certificate(der).subject.rfc4514_string()
            else:
                assert der is None
        forged = Authority(stranger).issue_client("api", user="kube-apiserver")
        reader, writer = await server.connect(forged)
        writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await head(reader)
        assert len(server.app.scopes) == 2

    told(story, files, client_ca=authority.certificate_file)
