"""What nobody should send: each is refused with a Status, and changes nothing."""

from __future__ import annotations

import http.client
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from bidplane.runtime.identity.credentials import Identity

from .conftest import Embedded, Endpoint, config_map

MAPS = "/api/v1/namespaces/{ns}/configmaps"
HEAD = b'{"metadata":{"name":"x"},"data":'
BOMB = b"a0: &a0 [x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)
)


def _names(endpoint: Endpoint) -> list[str]:
    found = [item["metadata"]["name"] for item in endpoint.ok("GET", MAPS)["items"]]
    return [name for name in found if name != "kube-root-ca.crt"]


@pytest.mark.parametrize(
    ("body", "media", "code"),
    [
        (b'{"metadata":', "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'"x"', "application/json", 400),
        (HEAD + b'{"a":' * 20000 + b"1" + b"}" * 20001, "application/json", 400),
        (HEAD + b'{"a":"' + b"a" * (4 << 20) + b'"}}', "application/json", 413),
        (BOMB, "application/yaml", 400),
        (b"a: [b", "application/yaml", 400),
        (b"x", "text/plain", 415),
        (b"k8s\x00\xff\xff", "application/vnd.kubernetes.protobuf", 400),
        (b'{"metadata":{"name":"Not A Name"}}', "application/json", 422),
        (b'{"metadata":{"name":"../../etc"}}', "application/json", 422),
        (b'{"kind":"Secret","metadata":{"name":"x"}}', "application/json", 400),
    ],
    ids=lambda value: str(value)[:24],
)
def test_bodies(endpoint: Endpoint, body: bytes, media: str, code: int) -> None:
    answer = endpoint.call("POST", MAPS, body, media=media)
    assert answer.code == code, answer.body
    assert answer.body["kind"] == "Status"
    assert answer.body["code"] == code
    assert answer.body["status"] == "Failure"
    assert _names(endpoint) == []


def test_a_field_that_is_named_twice(endpoint: Endpoint) -> None:
    body = b'{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}'
    strict = endpoint.call("POST", MAPS, body, fieldValidation="Strict")
    assert strict.code == 400
    assert 'strict decoding error: duplicate field "data.a"' in strict.body["message"]
    assert _names(endpoint) == []
    warned = endpoint.call("POST", MAPS, body)
    assert warned.code == 201
    assert 'duplicate field \\"data.a\\"' in warned.headers["warning"]
    assert warned.body["data"] == {"a": "2"}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"labelSelector": "a in (b"}, 400),
        ({"labelSelector": "=x"}, 400),
        ({"fieldSelector": "nope=1"}, 400),
        ({"continue": "nonsense"}, 400),
        ({"limit": "many"}, 400),
        ({"resourceVersion": "x"}, 400),
    ],
)
def test_queries(endpoint: Endpoint, query: dict[str, Any], code: int) -> None:
    answer = endpoint.call("GET", MAPS, **query)
    assert answer.code == code, answer.body
    assert answer.body["kind"] == "Status"


# What only we have: planes in the path, and the installation's tokens.


def _raw(embedded: Embedded, path: str, token: str) -> tuple[int, bytes]:
    """A request whose path nobody has tidied."""
    context = ssl.create_default_context(cafile=str(embedded.ca_file))
    place = urlsplit(embedded.url)
    connection = http.client.HTTPSConnection(place.hostname or "", place.port, context=context)
    connection.putrequest("GET", path, skip_host=False)
    connection.putheader("Authorization", f"Bearer {token}")
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "..%2f..%2fetc", "%2f", "a%00b", "A", "-a", "a" * 300, "", ".", "a%2fb"],
)
def test_names_that_are_paths(embedded: Embedded, name: str) -> None:
    host = embedded.make("host")  # the owner's token may go anywhere there is something
    before = embedded.planes.names()
    code, body = _raw(embedded, f"/planes/{name}/api/v1/namespaces", host.token)
    assert code in (400, 404), body
    assert b'"kind":"Status"' in body
    assert embedded.planes.names() == before


def test_tokens_that_are_not(embedded: Embedded, plane: Endpoint) -> None:
    name = plane.url.rpartition("/")[2]
    uid = embedded.planes.uid(name)
    assert uid is not None
    over = embedded.tokens.issue(
        Identity(plane=name, uid=uid, user=name, expires=int(time.time()) - 1)
    )
    other = embedded.make("other")
    for token, code in ((over, 401), (plane.token + "x", 401), ("x", 401), (other.token, 403)):
        answer = plane.raw("POST", MAPS, config_map("x"), [("Authorization", f"Bearer {token}")])
        assert answer.code == code
        assert answer.body["kind"] == "Status"
    assert _names(plane) == []
