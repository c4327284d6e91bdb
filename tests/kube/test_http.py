"""
The client over HTTP, against a small real server on a loopback socket.

What it asks for is written down; what it is answered is scripted. The server is not a
Kubernetes: the behaviour tests of the plane have those.
"""

import asyncio
import contextlib

import msgspec
import pytest

from bidplane.api.kinds import AGENT, BID, NODE, POD
from bidplane.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Gone,
    NotFound,
    Unavailable,
    api_error,
)
from bidplane.kube.http import HttpClient

OK = b'{"metadata":{"name":"x","resourceVersion":"7"}}'


class Server:
    """Answers every request with `code` and `body`, raw or chunk by chunk."""

    def __init__(self, code=200, body=OK, *, chunks=None, cut=False):
        self.code, self.body, self.chunks, self.cut = code, body, chunks, cut
        self.requests = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.client = HttpClient(f"http://127.0.0.1:{self.port}/planes/a/", token="t", ca_file=None)
        return self

    async def __aexit__(self, *_):
        await self.client.close()
        self._server.close()

    async def _serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.split("\r\n")
            headers = dict(h.lower().split(": ", 1) for h in rest if h)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = line.split(" ")
            self.requests.append((method, path.removeprefix("/planes/a"), body, headers))
            start = f"HTTP/1.1 {self.code} Said\r\nConnection: close\r\n"
            if self.chunks is None:
                writer.write(
                    f"{start}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body
                )
            else:
                writer.write(f"{start}Transfer-Encoding: chunked\r\n\r\n".encode())
                for chunk in self.chunks:
                    writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                if not self.cut:
                    writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()


def asked(call, server=None):
    """What one call asked the server for."""

    async def story():
        async with server or Server() as it:
            await call(it.client)
            ((method, path, body, headers),) = it.requests
            return method, path, msgspec.json.decode(body) if body else None, headers

    return asyncio.run(story())


def refusal(server, call=lambda client: client.get(POD, "x", "n")):
    async def story():
        async with server as it:
            with pytest.raises(ApiError) as caught:
                await call(it.client)
            return caught.value

    return asyncio.run(story())


def status(code, reason, message="no"):
    return msgspec.json.encode(
        {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    )


async def events(client):
    return [event async for event in client.watch(POD, resource_version="5")]


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda c: c.get(POD, "x", "n"), "GET /api/v1/namespaces/n/pods/x"),
        (lambda c: c.get(NODE, "x"), "GET /api/v1/nodes/x"),
        (lambda c: c.get(AGENT, "x", "ignored"), "GET /apis/bidplane.dev/v1alpha1/agents/x"),
        (lambda c: c.create(NODE, {"metadata": {"name": "x"}}), "POST /api/v1/nodes"),
        (lambda c: c.delete(POD, "x", "n"), "DELETE /api/v1/namespaces/n/pods/x"),
        (
            lambda c: c.patch(BID, "x", {}, "n", subresource="status"),
            "PATCH /apis/bidplane.dev/v1alpha1/namespaces/n/bids/x/status",
        ),
        (
            lambda c: c.replace(POD, {"metadata": {"name": "x", "namespace": "n"}}),
            "PUT /api/v1/namespaces/n/pods/x",
        ),
        (
            lambda c: c.bind("n", "x", "lease-1", uid="u"),
            "POST /api/v1/namespaces/n/pods/x/binding",
        ),
        # What is in a name stays in the name.
        (
            lambda c: c.get(POD, "../../secrets", "n"),
            "GET /api/v1/namespaces/n/pods/..%2F..%2Fsecrets",
        ),
        (lambda c: c.get(POD, "x?watch=1", "n"), "GET /api/v1/namespaces/n/pods/x%3Fwatch%3D1"),
    ],
)
def test_what_is_asked_for(call, line):
    method, path, _, headers = asked(call)
    assert f"{method} {path}" == line.replace("{PODS}", "/api/v1/namespaces/n/pods")
    assert headers["authorization"] == "bearer t"


@pytest.mark.parametrize(
    ("obj", "namespace", "where"),
    [
        ({"metadata": {"name": "x"}}, "n", "n"),
        ({"metadata": {"name": "x", "namespace": "own"}}, None, "own"),
        ({"metadata": {"name": "x"}}, None, "default"),
    ],
)
def test_create_finds_the_namespace_as_the_local_client_does(obj, namespace, where):
    _, path, body, _ = asked(lambda c: c.create(POD, obj, namespace))
    assert path == f"/api/v1/namespaces/{where}/pods"
    assert body == obj


def test_a_patch_is_a_merge_patch():
    _, _, body, headers = asked(lambda c: c.patch(POD, "x", {"a": None}, "n"))
    assert body == {"a": None}
    assert headers["content-type"] == "application/merge-patch+json"


def test_a_delete_carries_its_grace_and_its_precondition():
    _, _, body, _ = asked(lambda c: c.delete(POD, "x", "n", grace_seconds=0, uid="u"))
    assert body["gracePeriodSeconds"] == 0
    assert body["preconditions"] == {"uid": "u"}
    _, _, body, _ = asked(lambda c: c.delete(POD, "x", "n"))
    assert "gracePeriodSeconds" not in body
    assert "preconditions" not in body


def test_a_token_may_be_a_function_that_is_asked_each_time():
    async def story():
        async with Server() as it:
            tokens = iter(["one", "two"])
            client = HttpClient(it.client.url, token=lambda: next(tokens), ca_file=None)
            await client.get(NODE, "x")
            await client.get(NODE, "x")
            await client.close()
            return [headers["authorization"] for *_, headers in it.requests]

    assert asyncio.run(story()) == ["bearer one", "bearer two"]


def test_the_items_of_a_list_know_their_kind():
    body = b'{"items":[{"metadata":{"name":"x"}}],"metadata":{"resourceVersion":"7"}}'

    async def story():
        async with Server(body=body) as it:
            return await it.client.list(POD, "n", labels="a=b", fields="c=d"), it.requests

    listing, ((_, path, _, _),) = asyncio.run(story())
    assert listing.items == [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}]
    assert listing.resource_version == "7"
    assert path == "/api/v1/namespaces/n/pods?labelSelector=a%3Db&fieldSelector=c%3Dd"


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (503, "ServiceUnavailable", Unavailable),
        (422, "Invalid", ApiError),
        (403, "Forbidden", ApiError),
    ],
)
def test_a_refusal_is_the_error_its_status_says(code, reason, kind):
    error = refusal(Server(code, status(code, reason, "because")))
    assert type(error) is kind
    assert (error.code, error.reason, str(error)) == (code, reason, "because")


@pytest.mark.parametrize(
    ("code", "kind"),
    [(404, NotFound), (410, Gone), (502, Unavailable), (503, Unavailable), (500, ApiError)],
)
@pytest.mark.parametrize("body", [b"", b"<html>bad</html>", b"[]", b"3", b"\xff", b'{"a":', b"{}"])
def test_a_refusal_that_is_no_status_is_judged_by_its_code(code, kind, body):
    error = refusal(Server(code, body))
    assert type(error) is kind
    assert error.code == code


@pytest.mark.parametrize("body", [b"", b"<html>hello</html>", b"[]", b"null", b"\xff"])
def test_an_answer_that_is_no_object_is_as_good_as_none(body):
    assert type(refusal(Server(200, body))) is Unavailable
    assert type(refusal(Server(200, body), lambda c: c.list(POD))) is Unavailable
    assert type(refusal(Server(302, body))) is Unavailable


@pytest.mark.parametrize("body", [b"{}", b'{"metadata":{}}', b'{"items":3,"metadata":{}}'])
def test_a_list_that_is_no_list_is_as_good_as_none(body):
    assert type(refusal(Server(200, body), lambda c: c.list(POD))) is Unavailable


def test_nobody_there():
    async def story():
        async with Server() as it:
            port = it.port
        client = HttpClient(f"http://127.0.0.1:{port}", token="t", ca_file=None)
        with pytest.raises(Unavailable, match="does not answer"):
            await client.get(NODE, "x")
        with pytest.raises(Unavailable):
            await events(client)
        await client.close()

    asyncio.run(story())


def frame(kind, **obj):
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


def test_a_watch_gives_events_until_the_server_ends_it():
    lines = frame("ADDED", a=1) + frame("BOOKMARK", b=2) + b"\n" + frame("DELETED", c=3)
    halves = [lines[:25], lines[25:60], lines[60:]]

    async def story():
        async with Server(chunks=halves) as it:
            return await events(it.client), it.requests

    received, ((_, path, _, _),) = asyncio.run(story())
    assert [event.type for event in received] == ["ADDED", "BOOKMARK", "DELETED"]
    assert "watch=true&resourceVersion=5&allowWatchBookmarks=true" in path


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (Server(chunks=[frame("ERROR", code=410, reason="Expired", message="old")]), Gone),
        (Server(chunks=[frame("ERROR", code=500, message="odd")]), ApiError),
        (Server(410, status(410, "Expired")), Gone),
        (Server(503, b"restarting"), Unavailable),
        (Server(chunks=[frame("ADDED", a=1)], cut=True), Unavailable),
        (Server(chunks=[frame("ADDED", a=1), b'{"type":"ADD']), Unavailable),
        (Server(chunks=[b"[]\n"]), Unavailable),
        (Server(chunks=[b'{"type":"ADDED"}\n']), Unavailable),
    ],
    ids=["gone", "error", "refused", "down", "cut off", "half a line", "no event", "no object"],
)
def test_a_watch_that_breaks_says_how(server, kind):
    """Nothing but an ApiError: an informer knows no other, and would take its process along."""
    assert type(refusal(server, events)) is kind


def test_an_error_without_a_reason_keeps_that_of_its_kind():
    assert api_error(410, "", "old").reason == "Expired"
    assert api_error(418, "", "odd").reason == "InternalError"
