"""Planes over HTTP: owners only, and each thing where it is said to be."""

import asyncio
import json

import pytest

from bidplane.errors import ApiError, NotFound
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.identity.credentials import HOST_PLANE, Identity, Tokens
from bidplane.web.planes import PlanesApp

TOKENS = Tokens(b"k" * 32)


class Life:
    """What was asked for, in order."""

    def __init__(self):
        self.asked = []

    def list(self):
        return [{"name": "one", "agent": False, "awake": True, "bytes": 1}]

    async def snapshot(self, name):
        if name != "one":
            raise NotFound(f"there is no plane {name!r}")
        return b"bytes"

    def __getattr__(self, action):
        async def ask(*args, **options):
            if args[0] == "taken":
                raise ApiError("taken", code=409, reason="Conflict")
            self.asked.append((action, *args, *options.values()))

        return ask


def call(method, path, *, plane=HOST_PLANE, token=None, query="", body=b""):
    life, sent = Life(), []
    who = Identity(plane=plane, uid="u", user="x", expires=2**31)
    bearer = token if token is not None else TOKENS.issue(who)
    scope = {
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"authorization", f"Bearer {bearer}".encode())],
    }

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(PlanesApp(life, TOKENS, clock=SystemClock())(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], life.asked


def test_only_owners():
    for method in ("GET", "POST", "PUT", "DELETE"):
        path = "/bidplane/v1/planes" + ("" if method == "GET" else "/one")
        assert call(method, path, plane="trainer")[::2] == (403, [])
        assert call(method, path, token="forged")[::2] == (401, [])


@pytest.mark.parametrize(
    ("method", "path", "query", "asked"),
    [
        ("POST", "/one", "", ("create", "one")),
        ("DELETE", "/one", "", ("delete", "one")),
        ("POST", "/one/sleep", "", ("sleep", "one")),
        ("POST", "/one/wake", "", ("wake", "one")),
        ("POST", "/one/fork", "to=two", ("fork", "one", "two")),
        ("PUT", "/one", "", ("restore", "one", b"file", False)),
        ("PUT", "/one", "same=true", ("restore", "one", b"file", True)),
    ],
)
def test_what_is_asked_is_done(method, path, query, asked):
    code, _, done = call(method, f"/bidplane/v1/planes{path}", query=query, body=b"file")
    assert (code, done) == (200, [asked])


def test_what_is_read():
    code, body, _ = call("GET", "/bidplane/v1/planes")
    assert (code, json.loads(body)[0]["name"]) == (200, "one")
    assert call("GET", "/bidplane/v1/planes/one/snapshot")[:2] == (200, b"bytes")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/two/snapshot", 404),
        ("POST", "/taken", 409),
        ("POST", "", 404),
        ("POST", "/one/fork", 404),
        ("PATCH", "/one", 404),
        ("GET", "/one/two/three", 404),
    ],
)
def test_what_cannot_be_is_said(method, path, code):
    answered, body, asked = call(method, f"/bidplane/v1/planes{path}")
    assert (answered, asked) == (code, [])
    assert json.loads(body)["kind"] == "Status"


def test_a_limit_is_a_number():
    assert call("POST", "/bidplane/v1/planes/one/limit", query="pods=5")[2] == [
        ("limit", "one", {"pods": 5})
    ]
    for query, refused in (("", 404), ("pods=", 404), ("pods=many", 400), ("gpus=1", 400)):
        code, _, asked = call("POST", "/bidplane/v1/planes/one/limit", query=query)
        assert (code, asked) == (refused, [])
