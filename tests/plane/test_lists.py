"""Lists: in order, chosen by selectors, in pages of one moment."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import CONFIG_MAP
from bidplane.kube.http import HttpClient

from .conftest import Endpoint, config_map, pod

MAPS = "/api/v1/namespaces/{ns}/configmaps"
PODS = "/api/v1/namespaces/{ns}/pods"


def _names(listed: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


@pytest.fixture
def shelf(endpoint: Endpoint) -> Endpoint:
    for name, labels in {
        "a": {"tier": "web", "env": "prod", "size": "3"},
        "b": {"tier": "web", "env": "test"},
        "c": {"tier": "db", "env": "prod", "size": "12"},
        "d": {"shelf": ""},
    }.items():
        body = config_map(name)
        body["metadata"]["labels"] = {**labels, "mine": "yes"}
        endpoint.ok("POST", MAPS, body)
    return endpoint


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("mine", ["a", "b", "c", "d"]),
        ("tier=web", ["a", "b"]),
        ("tier==web,env=prod", ["a"]),
        ("mine,tier!=web", ["c", "d"]),
        ("tier in (web, db),env notin (test)", ["a", "c"]),
        ("mine,!tier", ["d"]),
        ("shelf=", ["d"]),
        ("size>5", ["c"]),
        ("size<5", ["a"]),
        ("mine, tier in (db)", ["c"]),
        ("tier in (web),tier in (db)", []),
    ],
)
def test_label_selectors(shelf: Endpoint, selector: str, names: list[str]) -> None:
    assert _names(shelf.ok("GET", MAPS, labelSelector=selector)) == names


@pytest.mark.parametrize(
    "selector", ["a in", "a in (b", "=b", "a==b=c", "a b", "UPPER/x/y=1", "size>x"]
)
def test_bad_label_selectors(endpoint: Endpoint, selector: str) -> None:
    answer = endpoint.call("GET", MAPS, labelSelector=selector)
    assert answer.code == 400
    assert answer.body["reason"] == "BadRequest"


def test_field_selectors(endpoint: Endpoint) -> None:
    endpoint.ok("POST", PODS, pod("a", nodeName="n1"))
    endpoint.ok("POST", PODS, pod("b"))
    assert _names(endpoint.ok("GET", PODS, fieldSelector="spec.nodeName=n1")) == ["a"]
    assert _names(endpoint.ok("GET", PODS, fieldSelector="spec.nodeName!=n1")) == ["b"]
    assert _names(endpoint.ok("GET", PODS, fieldSelector="metadata.name=b")) == ["b"]
    both = "status.phase=Pending,spec.nodeName="
    assert _names(endpoint.ok("GET", PODS, fieldSelector=both)) == ["b"]
    unknown = endpoint.call("GET", PODS, fieldSelector="spec.nope=1")
    assert unknown.code == 400
    assert "field label not supported" in unknown.body["message"]


def test_pages_are_of_one_moment(shelf: Endpoint) -> None:
    first = shelf.ok("GET", MAPS, labelSelector="mine", limit=2)
    assert _names(first) == ["a", "b"]
    token = first["metadata"]["continue"]
    body = config_map("bb")
    body["metadata"]["labels"] = {"mine": "yes"}
    shelf.ok("POST", MAPS, body)
    shelf.ok("DELETE", f"{MAPS}/c")
    rest = shelf.ok("GET", MAPS, **{"labelSelector": "mine", "limit": 9, "continue": token})
    assert _names(rest) == ["c", "d"]
    assert "continue" not in rest["metadata"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    bad = shelf.call("GET", MAPS, **{"limit": "2", "continue": "nonsense"})
    assert bad.code == 400


def test_what_remains_is_counted(endpoint: Endpoint) -> None:
    path = "/api/v1/namespaces/{ns}/secrets"
    for name in "abc":
        endpoint.ok("POST", path, {"metadata": {"name": name}})
    first = endpoint.ok("GET", path, limit=1)
    assert first["metadata"]["remainingItemCount"] == 2


def test_lists_span_namespaces(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        await client.create(CONFIG_MAP, config_map(endpoint.namespace), endpoint.namespace)
        found = await client.list(CONFIG_MAP, fields=f"metadata.name={endpoint.namespace}")
        assert [item["metadata"]["namespace"] for item in found.items] == [endpoint.namespace]
        assert int(found.resource_version) > 0

    endpoint.run(story)
