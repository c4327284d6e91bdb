"""Custom kinds: from their definition to their objects, and back to nothing."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import Kind

from .conftest import CRDS, Endpoint, thing_definition

MERGE = "application/merge-patch+json"


def _path(kind: Kind) -> str:
    return f"/apis/{kind.api_version}/namespaces/{{ns}}/{kind.plural}"


def _thing(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"size": 1, **spec}}


def _body(kind: Kind, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **_thing(name, **spec)}


def test_a_definition_is_established(endpoint: Endpoint, things: Kind) -> None:
    name = f"things.{things.group}"

    def conditions() -> dict[str, str]:
        status = endpoint.ok("GET", f"{CRDS}/{name}")["status"]
        return {c["type"]: c["status"] for c in status.get("conditions", ())}

    endpoint.eventually(lambda: conditions() == {"NamesAccepted": "True", "Established": "True"})
    found = endpoint.ok("GET", f"{CRDS}/{name}")
    assert found["status"]["storedVersions"] == ["v1"]
    assert found["status"]["acceptedNames"]["listKind"] == "ThingList"
    listed = endpoint.ok("GET", f"/apis/{things.api_version}")["resources"]
    assert {entry["name"] for entry in listed} == {"things", "things/status"}
    assert listed[0]["shortNames"] == ["th"]


def test_objects_are_defaulted_and_pruned(endpoint: Endpoint, things: Kind) -> None:
    made = endpoint.ok(
        "POST", _path(things), _body(things, "a", nope=1, free={"any": [1, {"x": None}]})
    )
    assert made["spec"] == {"size": 1, "colour": "red", "free": {"any": [1, {"x": None}]}}
    assert made["metadata"]["generation"] == 1
    assert made["kind"] == "Thing"
    strict = endpoint.call(
        "POST", _path(things), _body(things, "b", nope=1), fieldValidation="Strict"
    )
    assert strict.code == 400
    assert 'unknown field "spec.nope"' in strict.body["message"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"size": "large"}, "spec.size"),
        ({"size": 11}, "spec.size"),
        ({"size": 0}, "spec.size"),
        ({"colour": "blue"}, "spec.colour"),
        ({"code": "ABC"}, "spec.code"),
        ({"size": None}, "spec.size"),
    ],
)
def test_the_schema_is_enforced(
    endpoint: Endpoint, things: Kind, spec: dict[str, Any], field: str
) -> None:
    answer = endpoint.call("POST", _path(things), _body(things, "a", **spec))
    assert answer.code == 422, answer.body
    assert field in [cause["field"] for cause in answer.body["details"]["causes"]]
    assert answer.body["message"].startswith(f'Thing.{things.group} "a" is invalid')


def test_generation_counts_changes_of_intent(endpoint: Endpoint, things: Kind) -> None:
    endpoint.ok("POST", _path(things), _body(things, "a"))
    at = f"{_path(things)}/a"
    labelled = endpoint.ok("PATCH", at, {"metadata": {"labels": {"a": "b"}}}, media=MERGE)
    assert labelled["metadata"]["generation"] == 1
    said = endpoint.ok("PATCH", f"{at}/status", {"status": {"phase": "Up"}}, media=MERGE)
    assert said["status"] == {"phase": "Up"}
    assert said["metadata"]["generation"] == 1
    changed = endpoint.ok(
        "PATCH", at, {"spec": {"size": 2}, "status": {"phase": "Down"}}, media=MERGE
    )
    assert changed["metadata"]["generation"] == 2
    assert changed["status"] == {"phase": "Up"}
    both = {"spec": {"size": 3}, "status": {"phase": "Up2"}, "metadata": {"labels": {"c": "d"}}}
    only = endpoint.ok("PATCH", f"{at}/status", both, media=MERGE)
    assert only["spec"]["size"] == 2
    assert only["status"] == {"phase": "Up2"}
    assert only["metadata"]["labels"] == {"a": "b"}


def test_a_replace_needs_a_revision(endpoint: Endpoint, things: Kind) -> None:
    made = endpoint.ok("POST", _path(things), _body(things, "a"))
    del made["metadata"]["resourceVersion"]
    answer = endpoint.call("PUT", f"{_path(things)}/a", made)
    assert answer.code == 422
    assert "metadata.resourceVersion" in answer.body["message"]


def test_strategic_merge_is_for_built_in_kinds(endpoint: Endpoint, things: Kind) -> None:
    endpoint.ok("POST", _path(things), _body(things, "a"))
    answer = endpoint.call(
        "PATCH",
        f"{_path(things)}/a",
        {"spec": {"size": 2}},
        media="application/strategic-merge-patch+json",
    )
    assert answer.code == 415


def test_columns_of_the_definition(endpoint: Endpoint, things: Kind) -> None:
    endpoint.ok("POST", _path(things), _body(things, "a", size=7))
    endpoint.ok("PATCH", f"{_path(things)}/a/status", {"status": {"phase": "Up"}}, media=MERGE)
    table = endpoint.ok("GET", _path(things), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size", "Phase"]
    assert table["rows"][0]["cells"] == ["a", 7, "Up"]


def test_a_definition_takes_its_objects_along(endpoint: Endpoint, things: Kind) -> None:
    held = _body(things, "a")
    held["metadata"]["finalizers"] = ["tests.bidplane.dev/hold"]
    endpoint.ok("POST", _path(things), held)
    endpoint.ok("POST", _path(things), _body(things, "b"))
    name = f"things.{things.group}"
    endpoint.ok("DELETE", f"{CRDS}/{name}")
    endpoint.eventually(lambda: endpoint.call("GET", f"{_path(things)}/b").code == 404)
    assert endpoint.call("GET", f"{CRDS}/{name}").code == 200
    endpoint.ok("PATCH", f"{_path(things)}/a", {"metadata": {"finalizers": None}}, media=MERGE)
    endpoint.eventually(lambda: endpoint.call("GET", f"{CRDS}/{name}").code == 404)
    endpoint.eventually(lambda: endpoint.call("GET", _path(things)).code == 404)


def test_a_definition_can_change(endpoint: Endpoint, things: Kind) -> None:
    name = f"things.{things.group}"
    found = endpoint.ok("GET", f"{CRDS}/{name}")
    version = found["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["extra"] = {"type": "string"}
    patch = {"spec": {"versions": [version]}}
    endpoint.ok("PATCH", f"{CRDS}/{name}", patch, media=MERGE)

    def kept() -> bool:
        body = _body(things, "x", extra="yes")
        made = endpoint.call("POST", _path(things), body, dryRun="All")
        # A real server may be between the old schema and the new, and say so.
        return made.code == 201 and made.body["spec"].get("extra") == "yes"

    endpoint.eventually(kept)


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "Galactic"},
        {"group": "other.example"},
        {"versions": []},
        {"names": {"plural": "", "kind": "Thing"}},
    ],
)
def test_bad_definitions_are_refused(endpoint: Endpoint, change: dict[str, Any]) -> None:
    kind = Kind("bad.bidplane.test", "v1", "Thing", "things")
    answer = endpoint.call("POST", CRDS, thing_definition(kind, **change))
    assert answer.code == 422, answer.body
    assert answer.body["reason"] == "Invalid"


def test_a_schema_must_be_structural(endpoint: Endpoint) -> None:
    kind = Kind("bad.bidplane.test", "v1", "Thing", "things")
    crd = thing_definition(kind)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["size"]["type"]
    answer = endpoint.call("POST", CRDS, crd)
    assert answer.code == 422
    assert "must not be empty for specified object fields" in answer.body["message"]
