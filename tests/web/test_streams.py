"""What is passed on, from the exchange and from nodes, over real TLS on loopback sockets."""

import asyncio
import contextlib
import time

import msgspec
import pytest

from bidplane.errors import ApiError, NotFound, Unavailable
from bidplane.http.asgi import while_connected
from bidplane.http.server.serve import bind, serve
from bidplane.runtime.identity import certificates
from bidplane.web.exchange_proxy import ExchangeProxy
from bidplane.web.podstreams import NodeStreams

PATIENCE = 20.0
PRICES = "/exchange/v1/prices"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return certificates.ensure(folder, hosts=["127.0.0.1"], now=time.time())


class Behind:
    """What stands behind the proxy: an app that writes down what it was asked."""

    def __init__(self, files, answer=None):
        self.files, self.asked = files, []
        self.answer = answer or self.say_ok
        self.gone = asyncio.Event()

    async def __aenter__(self):
        self._listener = bind("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self._task = asyncio.create_task(serve(self, self._listener, self.files))
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._listener.close()

    async def __call__(self, scope, receive, send):
        message = await receive()
        self.asked.append(
            (
                scope["method"],
                scope["raw_path"],
                scope["query_string"],
                dict(scope["headers"]),
                message["body"],
            )
        )
        await self.answer(receive, send)

    async def say_ok(self, receive, send):
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def stream(self, receive, send):
        """One chunk, then nothing until the client goes."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()

    async def say_line(self, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"line\n"})

    async def break_off(self, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
        raise ConnectionError("on purpose")


class Client:
    """One request to an app, without a socket."""

    def __init__(
        self, *, method="GET", path="/exchange/v1/prices", query=b"", headers=(), body=b""
    ):
        raw = path.encode("latin-1")
        self.scope = {
            "type": "http",
            "method": method,
            "path": path.replace("%2F", "/").replace("%3F", "?"),
            "raw_path": raw,
            "query_string": query,
            "headers": list(headers),
        }
        self._said = [{"type": "http.request", "body": body}]
        self.sent = []
        self.got, self.leave = asyncio.Event(), asyncio.Event()

    async def receive(self):
        if self._said:
            return self._said.pop(0)
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)
        if message.get("body"):
            self.got.set()

    @property
    def code(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def over(self):
        return not self.sent[-1].get("more_body")


@contextlib.asynccontextmanager
async def proxied(behind):
    proxy = ExchangeProxy(behind.url, ca_file=str(behind.files.ca))
    try:
        yield proxy
    finally:
        await proxy.close()


def told(story, files, answer=None):
    async def whole():
        async with asyncio.timeout(PATIENCE), Behind(files) as behind:
            if answer:
                behind.answer = getattr(behind, answer)
            async with proxied(behind) as proxy:
                await story(behind, proxy)

    asyncio.run(whole())


def test_a_request_is_passed_on_whole_and_the_answer_back(files):
    async def story(behind, proxy):
        headers = [(b"authorization", b"Bearer t"), (b"cookie", b"c"), (b"content-type", b"x/y")]
        client = Client(method="POST", query=b"a=b%20c", headers=headers, body=b"hello")
        await proxy(client.scope, client.receive, client.send)
        assert (client.code, client.body, client.over) == (201, b"ok", True)
        ((method, path, query, got, body),) = behind.asked
        assert (method, path, query, body) == (
            "POST",
            b"/exchange/v1/prices",
            b"a=b%20c",
            b"hello",
        )
        assert got[b"authorization"] == b"Bearer t"
        assert b"cookie" not in got
        assert got.get(b"accept-encoding") == b"identity", "what comes is passed on as it is"

    told(story, files)


def test_what_is_quoted_in_a_path_stays_in_the_path(files):
    """Decoded, an agent's name could bring a query of its own."""

    async def story(behind, proxy):
        client = Client(path="/exchange/v1/wallets/a%3Fowner=b%2Fc", query=b"x=y")
        await proxy(client.scope, client.receive, client.send)
        ((_, path, query, _, _),) = behind.asked
        assert (path, query) == (b"/exchange/v1/wallets/a%3Fowner=b%2Fc", b"x=y")

    told(story, files)


def test_a_stream_arrives_as_it_is_made_and_ends_when_the_client_goes(files):
    async def story(behind, proxy):
        client = Client()
        passing = asyncio.create_task(proxy(client.scope, client.receive, client.send))
        await client.got.wait()
        assert client.body == b"first\n"
        client.leave.set()
        await passing
        await behind.gone.wait()

    told(story, files, "stream")


def test_many_who_watch_do_not_shut_out_one_who_asks(files):
    async def story(behind, proxy):
        watching = [Client() for _ in range(120)]
        tasks = [asyncio.create_task(proxy(c.scope, c.receive, c.send)) for c in watching]
        for client in watching:
            await client.got.wait()
        behind.answer = behind.say_ok
        client = Client()
        await proxy(client.scope, client.receive, client.send)
        assert client.code == 201
        for watcher in watching:
            watcher.leave.set()
        await asyncio.gather(*tasks)

    told(story, files, "stream")


def test_an_answer_that_breaks_off_ends_early(files):
    async def story(behind, proxy):
        client = Client()
        await proxy(client.scope, client.receive, client.send)
        assert (client.body, client.over) == (b"first\n", True)

    told(story, files, "break_off")


def test_an_exchange_that_is_down_is_a_503_with_a_reason(files):
    async def story():
        async with Behind(files) as behind:
            pass
        async with proxied(behind) as proxy:
            client = Client()
            await proxy(client.scope, client.receive, client.send)
            assert client.code == 503
            assert msgspec.json.decode(client.body)["reason"] == "ServiceUnavailable"

    asyncio.run(story())


def test_a_request_that_is_too_large_or_cut_short_is_not_passed_on(files):
    async def story(behind, proxy):
        large = Client(method="POST", body=b"x" * (1 << 21))
        await proxy(large.scope, large.receive, large.send)
        assert large.code == 413
        short = Client(method="POST")
        short._said = [{"type": "http.request", "body": b"x", "more_body": True}]
        short.leave.set()
        await proxy(short.scope, short.receive, short.send)
        assert short.sent == []
        assert behind.asked == []

    told(story, files)


def test_work_that_fails_fails_though_the_client_is_there():
    async def story():
        async def receive():
            await asyncio.Event().wait()

        async def work():
            raise KeyError("x")

        with pytest.raises(KeyError):
            await while_connected(receive, work())

    asyncio.run(story())


# Logs.


class Host:
    """A client of the host that knows one node and one pod."""

    def __init__(self, port, **pod):
        self.node = {
            "metadata": {"name": "h100-a"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            },
        }
        self.pod = {
            "metadata": {
                "name": "train-x-default-abc",
                "namespace": "agent-a",
                "annotations": {"bidplane.dev/plane-uid": "u1"},
            },
            "spec": {"nodeName": "h100-a"},
            **pod,
        }

    async def get(self, kind, name, namespace=None):
        found = self.pod if kind.kind == "Pod" else self.node
        if found is None:
            raise NotFound(name)
        return found


POD = {"metadata": {"name": "train", "namespace": "default", "uid": "u1"}, "spec": {}}


def logs_of(files, *, answer=None, pod=POD, plane="a", change=lambda host: None, up=True):
    async def whole():
        async with asyncio.timeout(PATIENCE), Behind(files) as behind:
            behind.answer = getattr(behind, answer or "say_ok")
            host = Host(behind.port if up else 1)
            change(host)
            logs = NodeStreams(lambda: host, token=lambda: "t", ca_file=str(files.ca))
            asked = [("follow", "true"), ("tailLines", "5")]
            try:
                chunks = await logs.logs(plane, pod, "ma/in", asked)
                return [chunk async for chunk in chunks], behind.asked
            finally:
                await logs.close()

    return asyncio.run(whole())


def test_logs_come_from_the_host_pods_node(files):
    chunks, ((method, path, query, headers, _),) = logs_of(files, answer="say_line")
    assert b"".join(chunks) == b"line\n"
    assert path == b"/containerLogs/agent-a/train-x-default-abc/ma%2Fin"
    assert (method, query) == ("GET", b"follow=true&tailLines=5")
    assert headers[b"authorization"] == b"Bearer t"


def test_logs_that_break_off_end(files):
    chunks, _ = logs_of(files, answer="break_off")
    assert b"".join(chunks) == b"first\n"


def test_a_nodes_refusal_is_passed_on(files):
    with pytest.raises(ApiError, match="ok") as caught:
        logs_of(files)
    assert caught.value.code == 201


def predecessor(host):
    host.pod["metadata"]["annotations"]["bidplane.dev/plane-uid"] = "u0"


def gone(host):
    host.pod = None


@pytest.mark.parametrize("change", [predecessor, gone])
def test_a_pod_without_a_host_pod_of_its_own_has_no_logs(files, change):
    with pytest.raises(ApiError, match='"train" does not run on a node') as caught:
        logs_of(files, change=change)
    assert caught.value.code == 400


def test_a_pod_of_the_host_that_is_not_bound_has_no_logs(files):
    with pytest.raises(ApiError, match="does not run on a node"):
        logs_of(files, plane="host")


def test_a_node_that_is_down_or_serves_nothing(files):
    with pytest.raises(Unavailable, match="does not answer"):
        logs_of(files, up=False)

    def deaf(host):
        host.node["status"] = {}

    with pytest.raises(Unavailable, match="serves neither logs nor exec"):
        logs_of(files, change=deaf)
