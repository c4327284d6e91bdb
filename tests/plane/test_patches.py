"""The patch types, each with its own idea of what a list is."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Endpoint, config_map, pod

MAPS = "/api/v1/namespaces/{ns}/configmaps"
PODS = "/api/v1/namespaces/{ns}/pods"
JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def test_merge_patch(endpoint: Endpoint) -> None:
    endpoint.ok("POST", MAPS, config_map("a", x="1", y="2"))
    patched = endpoint.ok("PATCH", f"{MAPS}/a", {"data": {"x": None, "z": "3"}}, media=MERGE)
    assert patched["data"] == {"y": "2", "z": "3"}


def test_json_patch(endpoint: Endpoint) -> None:
    endpoint.ok("POST", MAPS, config_map("a", x="1", y="2"))
    operations = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "remove", "path": "/data/x"},
        {"op": "add", "path": "/data/e", "value": "3"},
        {"op": "replace", "path": "/data/y", "value": "4"},
        {"op": "copy", "from": "/data/y", "path": "/data/c"},
        {"op": "move", "from": "/data/c", "path": "/data/d"},
    ]
    patched = endpoint.ok("PATCH", f"{MAPS}/a", operations, media=JSON)
    assert patched["data"] == {"y": "4", "e": "3", "d": "4"}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/data/x", "value": "other"},
        {"op": "remove", "path": "/data/nope"},
        {"op": "replace", "path": "/nope/nope", "value": "1"},
    ],
)
def test_a_json_patch_that_does_not_fit(endpoint: Endpoint, operation: dict[str, Any]) -> None:
    endpoint.ok("POST", MAPS, config_map("a", x="1"))
    answer = endpoint.call("PATCH", f"{MAPS}/a", [operation], media=JSON)
    assert answer.code == 422
    assert endpoint.ok("GET", f"{MAPS}/a")["data"] == {"x": "1"}


def test_strategic_merge_by_key(endpoint: Endpoint) -> None:
    endpoint.ok("POST", PODS, pod("a", tolerations=[{"key": "x", "operator": "Exists"}]))
    container = {"name": "main", "image": "busybox:9"}
    patched = endpoint.ok(
        "PATCH", f"{PODS}/a", {"spec": {"containers": [container]}}, media=STRATEGIC
    )
    found = patched["spec"]["containers"]
    assert len(found) == 1
    assert found[0]["image"] == "busybox:9"
    assert found[0]["terminationMessagePath"] == "/dev/termination-log"


def test_strategic_directives(endpoint: Endpoint) -> None:
    path = "/api/v1/namespaces/{ns}/serviceaccounts"
    body = {
        "metadata": {"name": "a", "finalizers": ["x.dev/a", "x.dev/b"]},
        "secrets": [{"name": "one"}, {"name": "two"}],
    }
    endpoint.ok("POST", path, body)
    patch = {
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["x.dev/a"], "finalizers": ["x.dev/c"]},
        "secrets": [{"name": "one", "$patch": "delete"}, {"name": "three"}],
    }
    patched = endpoint.ok("PATCH", f"{path}/a", patch, media=STRATEGIC)
    assert patched["metadata"]["finalizers"] == ["x.dev/c", "x.dev/b"]
    names = [secret["name"] for secret in patched["secrets"]]
    assert names == ["three", "two"]  # what is new comes first
    replaced = endpoint.ok(
        "PATCH",
        f"{path}/a",
        {"secrets": [{"$patch": "replace"}, {"name": "only"}]},
        media=STRATEGIC,
    )
    assert [secret["name"] for secret in replaced["secrets"]] == ["only"]
    done = endpoint.ok("PATCH", f"{path}/a", {"metadata": {"finalizers": None}}, media=STRATEGIC)
    assert "finalizers" not in done["metadata"]


def test_a_patch_can_be_conditional(endpoint: Endpoint) -> None:
    made = endpoint.ok("POST", MAPS, config_map("a", x="1"))
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "data": {"x": "2"}}
    endpoint.ok("PATCH", f"{MAPS}/a", patch, media=MERGE)
    again = endpoint.call("PATCH", f"{MAPS}/a", patch | {"data": {"x": "3"}}, media=MERGE)
    assert again.code == 409
    assert again.body["reason"] == "Conflict"
    other = {"metadata": {"uid": "other"}, "data": {"x": "3"}}
    assert endpoint.call("PATCH", f"{MAPS}/a", other, media=MERGE).code == 422
    put = {**endpoint.ok("GET", f"{MAPS}/a"), "data": {"x": "3"}}
    put["metadata"]["uid"] = "other"
    assert endpoint.call("PUT", f"{MAPS}/a", put).code == 409


def test_identity_cannot_be_patched(endpoint: Endpoint) -> None:
    made = endpoint.ok("POST", MAPS, config_map("a"))
    patch = {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}
    patched = endpoint.call("PATCH", f"{MAPS}/a", patch, media=MERGE)
    found = endpoint.ok("GET", f"{MAPS}/a")["metadata"]
    assert found["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert patched.code in (200, 422)
    renamed = endpoint.call("PATCH", f"{MAPS}/a", {"metadata": {"name": "b"}}, media=MERGE)
    assert renamed.code == 400


def test_patching_nothing(endpoint: Endpoint) -> None:
    assert endpoint.call("PATCH", f"{MAPS}/nope", {"data": {}}, media=MERGE).code == 404
    assert endpoint.call("PATCH", f"{MAPS}/nope", {}, media="application/json").code == 415


def test_what_is_emptied_is_gone(endpoint: Endpoint) -> None:
    body = config_map("a", x="1")
    body["metadata"] |= {"annotations": {"n": "1"}, "labels": {}, "finalizers": []}
    made = endpoint.ok("POST", MAPS, body)
    assert not made["metadata"].keys() & {"labels", "finalizers"}
    patch = {"metadata": {"annotations": {"n": None}}, "data": {"x": None}}
    emptied = endpoint.ok("PATCH", f"{MAPS}/a", patch, media=MERGE)
    assert "annotations" not in emptied["metadata"]
    assert "data" not in emptied
