"""A node's server over real TLS: what it refuses, and clients that break off or say nonsense."""

import asyncio
import contextlib
import json
import ssl
import time

import pytest

from bidplane.errors import ApiError, NotFound
from bidplane.http.server.serve import bind, serve
from bidplane.machinery.clock import SystemClock
from bidplane.node.auth import InstallationGate
from bidplane.node.server import KubeletServer
from bidplane.node.streams import forward
from bidplane.runtime.identity import certificates
from bidplane.runtime.identity.credentials import Identity, Tokens
from bidplane.wire.streams.remotecommand import V4, V5, ChannelData, Channels
from bidplane.wire.streams.spdy import frames
from bidplane.wire.streams.spdy.session import Ended, Received, Session, WasReset
from bidplane.wire.streams.websocket import Closed, Message, WebSocket

PATIENCE = 20.0
POD = {"metadata": {"namespace": "a", "name": "p", "uid": "u1"}, "spec": {"nodeName": "n"}}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return certificates.ensure(folder, hosts=["127.0.0.1"], now=time.time())


class Running:
    """A command that says what it was told to, when it is told to."""

    def __init__(self):
        self.typed, self.sizes = b"", []
        self.stdin_closed, self.closed = asyncio.Event(), asyncio.Event()
        self.exit = asyncio.get_running_loop().create_future()
        self.output = asyncio.Queue()

    async def write(self, data):
        self.typed += data

    async def close_stdin(self):
        self.stdin_closed.set()

    async def stdout(self):
        while (data := await self.output.get()) is not None:
            yield data

    async def stderr(self):
        return
        yield b""

    def resize(self, width, height):
        self.sizes.append((width, height))

    async def wait(self):
        return await self.exit

    async def close(self):
        self.closed.set()

    def end(self, code):
        self.output.put_nowait(None)
        self.exit.set_result(code)


class Runtime:
    def __init__(self):
        self.session, self.refusal, self.asked = None, None, []
        self.port = 0

    def pods(self):
        return [POD]

    def find(self, namespace, name):
        if (namespace, name) != ("a", "p"):
            raise NotFound("pod does not exist")
        return POD

    async def logs(self, pod, container, options):
        self.asked.append(options)

        async def lines():
            yield b"line\n"

        return lines()

    async def exec(self, pod, container, argv, *, stdin, tty):
        self.asked.append((container, argv, stdin, tty))
        if self.refusal:
            raise self.refusal
        self.session = Running()
        return self.session

    async def attach(self, pod, container, *, stdin):
        return await self.exec(pod, container, [], stdin=stdin, tty=False)

    async def connect(self, pod, port):
        return await asyncio.open_connection("127.0.0.1", self.port)


class Site:
    def __init__(self, files):
        self._files, self.runtime = files, Runtime()
        self._tokens, self._clock = Tokens(b"t" * 32), SystemClock()

    def token(self, plane="host"):
        expires = int(time.time()) + 999
        return self._tokens.issue(Identity(plane=plane, uid="u", user="me", expires=expires))

    async def __aenter__(self):
        app = KubeletServer(
            self.runtime, InstallationGate(self._tokens, clock=self._clock), clock=self._clock
        )
        self._listener = bind("127.0.0.1", 0)
        self._task = asyncio.create_task(serve(app, self._listener, self._files))
        self._open = []
        return self

    async def __aexit__(self, *_):
        for writer in self._open:
            writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._listener.close()

    async def ask(self, method, target, *headers, token=None):
        tls = ssl.create_default_context(cafile=str(self._files.ca))
        port = self._listener.getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        self._open.append(writer)
        given = self.token() if token is None else token
        lines = [f"{method} {target} HTTP/1.1", "Host: n", f"Authorization: Bearer {given}"]
        writer.write("\r\n".join([*lines, *headers, "", ""]).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        return int(head.split()[1]), head, reader, writer

    async def refusal(self, method, target, *headers, token=None):
        code, head, reader, _ = await self.ask(method, target, *headers, token=token)
        if "chunked" in head:
            size = int(await reader.readuntil(b"\r\n"), 16)
            return code, (await reader.readexactly(size)).decode()
        length = head.partition("content-length: ")[2].partition("\r\n")[0]
        return code, (await reader.readexactly(int(length))).decode()


def told(files, story):
    async def whole():
        async with asyncio.timeout(PATIENCE), Site(files) as site:
            await story(site)

    asyncio.run(whole())


WS = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
SPDY = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
EXEC = "/exec/a/p/main?command=sh&input=1&output=1"


REFUSED = [
    ("GET", "/nothing", (), 404, "no such path"),
    ("GET", "/exec/a/p", (), 404, "no such path"),
    ("DELETE", "/pods", (), 404, "no such path"),
    ("GET", "/containerLogs/a/other/main", (), 404, "pod does not exist"),
    ("GET", "/containerLogs/a/p/main?tailLines=x", (), 400, "tailLines: 'x' is not a number"),
    ("GET", "/containerLogs/a/p/main?tailLines=-1", (), 400, "tailLines"),
    ("GET", "/containerLogs/a/p/main?limitBytes=0", (), 400, "limitBytes: must be at least 1"),
    ("GET", "/containerLogs/a/p/main?sinceTime=noon", (), 400, "no RFC 3339 time"),
    ("GET", "/containerLogs/a/p/main?sinceSeconds=1&sinceTime=x", (), 400, "at most one of"),
    ("POST", EXEC, (), 400, "unable to upgrade"),
    ("POST", EXEC, ("Connection: Upgrade", "Upgrade: h2c"), 400, "unable to upgrade"),
    ("POST", "/exec/a/p/main?command=sh", SPDY, 400, "at least 1 of stdin"),
    ("POST", "/exec/a/p/main?output=1", SPDY, 400, "at least 1 command"),
    ("POST", "/exec/a/p/other-uid/main?command=x&output=1", SPDY, 404, "does not exist"),
    ("POST", EXEC, SPDY, 403, "unable to negotiate protocol"),
    ("POST", EXEC, (*SPDY, "X-Stream-Protocol-Version: v9"), 403, "client supports [v9]"),
    ("GET", EXEC, (*WS, "Sec-WebSocket-Protocol: v9"), 403, "unable to negotiate"),
    ("GET", EXEC, ("Connection: Upgrade", "Upgrade: websocket"), 400, "Version must be 13"),
    ("GET", "/portForward/a/p", (*WS, f"Sec-WebSocket-Protocol: {V4}"), 400, '"ports" is'),
    ("GET", "/portForward/a/p", WS, 403, "unable to negotiate"),
]


def test_what_makes_no_sense_is_refused_in_words(files):
    async def story(site):
        for method, target, headers, code, words in REFUSED:
            got, said = await site.refusal(method, target, *headers)
            assert (got, words in said) == (code, True), (method, target, got, said)
        assert site.runtime.session is None, "nothing was started"

    told(files, story)


def test_nobody_is_let_in_without_the_owners_token(files):
    async def story(site):
        logs = "/containerLogs/a/p/main"
        for target in ("/pods", "/healthz", "/metrics", logs, EXEC, "/portForward/a/p"):
            assert (await site.refusal("GET", target, *WS, token=""))[0] == 401
            assert (await site.refusal("GET", target, *WS, token="made-up"))[0] == 401
            assert (await site.refusal("GET", target, *WS, token=site.token("agent-a")))[0] == 403
        assert site.runtime.asked == []

    told(files, story)


def test_options_of_logs_are_passed_on(files):
    async def story(site):
        query = "follow=true&previous=true&timestamps=true&tailLines=0&limitBytes=7&sinceSeconds=60"
        assert (await site.refusal("GET", f"/containerLogs/a/p/main?{query}"))[1] == "line\n"
        (options,) = site.runtime.asked
        assert options.follow
        assert options.previous
        assert options.timestamps
        assert (options.tail_lines, options.limit_bytes) == (0, 7)
        assert abs(time.time() - 60 - options.since) < 10

    told(files, story)


class V5Client:
    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._socket, self._channels = WebSocket(client=True), Channels(V5)
        self._events = []

    def send(self, channel, data):
        self._writer.write(self._socket.send(self._channels.encode(channel, data)))

    def close_channel(self, channel):
        self._writer.write(self._socket.send(bytes((255, channel))))

    def noise(self, data):
        self._writer.write(self._socket.send(data))

    async def next(self):
        while not self._events:
            received = await self._reader.read(1 << 16)
            if not received:
                return None
            self._events += self._socket.receive(received)
        event = self._events.pop(0)
        return self._channels.decode(event.data) if isinstance(event, Message) else event


async def entered(site, target=EXEC):
    code, head, reader, writer = await site.ask("GET", target, *WS, f"Sec-WebSocket-Protocol: {V5}")
    assert (code, V5 in head) == (101, True), head
    return V5Client(reader, writer), writer


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_a_command_over_v5(files):
    async def story(site):
        client, _ = await entered(site, EXEC + "&tty=1")
        await until(lambda: site.runtime.session)
        session = site.runtime.session
        client.send(0, b"typed")
        client.send(4, b'{"Width":80,"Height":24}')
        client.send(9, b"no such channel")
        client.close_channel(0)
        await session.stdin_closed.wait()
        assert session.typed == b"typed"
        await until(lambda: session.sizes == [(80, 24)])
        session.output.put_nowait(b"said")
        assert await client.next() == ChannelData(1, b"said")
        session.end(3)
        last = await client.next()
        assert last.channel == 3
        assert json.loads(last.data)["details"]["causes"][0]["message"] == "3"
        assert await client.next() == Closed(1000)
        assert session.closed.is_set()
        assert site.runtime.asked == [("main", ["sh"], True, True)]

    told(files, story)


@pytest.mark.parametrize("how", ["hangs up", "closes", "talks nonsense", "is no websocket"])
def test_a_client_that_goes_takes_its_command_along(files, how):
    async def story(site):
        client, writer = await entered(site)
        await until(lambda: site.runtime.session)
        match how:
            case "hangs up":
                writer.close()
            case "closes":
                writer.write(client._socket.close())
            case "talks nonsense":
                client.noise(b"")
            case _:
                writer.write(b"\xff" * 100)
        await site.runtime.session.closed.wait()
        assert not site.runtime.session.stdin_closed.is_set(), "nobody said that it was done"

    told(files, story)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [(ApiError("no such container", code=400), "no such container"), (KeyError("bug"), "bug")],
)
def test_what_cannot_be_started_is_said_on_the_error_channel(files, refusal, words):
    async def story(site):
        site.runtime.refusal = refusal
        client, _ = await entered(site)
        said = await client.next()
        status = json.loads(said.data)
        assert (said.channel, status["status"]) == (3, "Failure")
        assert words in status["message"]

    told(files, story)


class SpdyClient:
    def __init__(self, reader, writer):
        self._reader, self._writer, self.session = reader, writer, Session(client=True)
        self.events = []

    def open(self, **headers):
        stream, wire = self.session.open(headers)
        self._writer.write(wire)
        return stream

    def send(self, stream, data, *, fin=False):
        self._writer.write(self.session.send(stream, data, fin=fin))

    async def until(self, condition):
        while not condition(self.events):
            received = await self._reader.read(1 << 16)
            assert received, f"it hung up: {self.events}"
            self.events += self.session.receive(received)

    def got(self, stream):
        return b"".join(
            e.data for e in self.events if isinstance(e, Received) and e.stream == stream
        )


async def forwarding(site):
    code, _, reader, writer = await site.ask(
        "POST", "/portForward/a/p", *SPDY, "X-Stream-Protocol-Version: portforward.k8s.io"
    )
    assert code == 101
    return SpdyClient(reader, writer), writer


@contextlib.asynccontextmanager
async def echo(site):
    async def answer(reader, writer):
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    site.runtime.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()


def test_two_connections_at_once_each_with_its_own_id(files):
    async def story(site):
        async with echo(site):
            client, _ = await forwarding(site)
            pairs = []
            for at in ("0", "1"):
                error = client.open(streamtype="error", port="80", requestid=at)
                pairs.append((error, client.open(streamtype="data", port="80", requestid=at)))
            for at, (_, data) in enumerate(pairs):
                client.send(data, b"hello %d" % at, fin=True)
            ends = {Ended(stream) for pair in pairs for stream in pair}
            await client.until(lambda events: ends <= set(events))
            for at, (error, data) in enumerate(pairs):
                assert (client.got(error), client.got(data)) == (b"", b"hello %d" % at)

    told(files, story)


def test_a_port_that_is_none_and_one_nobody_listens_on(files):
    async def story(site):
        client, _ = await forwarding(site)
        for port, words in (("x", b"is not a port"), ("1", b"error forwarding port 1")):
            site.runtime.port = 1
            error = client.open(streamtype="error", port=port, requestid=port)
            client.open(streamtype="data", port=port, requestid=port)
            await client.until(lambda events, error=error: Ended(error) in events)
            assert words in client.got(error)

    told(files, story)


def test_streams_that_are_no_pair_are_reset(files, monkeypatch):
    monkeypatch.setattr(forward, "_PAIR_SECONDS", 0.05)

    async def story(site):
        client, _ = await forwarding(site)
        odd = client.open(streamtype="stdin", port="80", requestid="0")
        lonely = client.open(streamtype="data", port="80", requestid="1")
        twice = client.open(streamtype="data", port="80", requestid="1")
        await client.until(
            lambda events: (
                {odd, lonely, twice} == {e.stream for e in events if isinstance(e, WasReset)}
            )
        )

    told(files, story)


def test_who_speaks_no_spdy_is_hung_up_on(files):
    async def story(site):
        _, writer = await forwarding(site)
        writer.write(frames.Encoder().encode(frames.Ping(1)) + b"\xff" * 64)
        reader = writer.transport.get_protocol()._stream_reader
        while await reader.read(1000):
            pass

    told(files, story)
