"""Server-side apply: who owns a field, who may change it, and what goes when nobody states it."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import Kind

from .conftest import CRDS, Answer, Endpoint, config_map

MAPS = "/api/v1/namespaces/{ns}/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{ns}/deployments"
ACCOUNTS = "/api/v1/namespaces/{ns}/serviceaccounts"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def _apply(endpoint: Endpoint, path: str, body: Any, who: str = "one", **options: Any) -> Answer:
    return endpoint.call("PATCH", path, body, media=APPLY, fieldManager=who, **options)


def _applied(endpoint: Endpoint, path: str, body: Any, who: str = "one", **options: Any) -> Any:
    answer = _apply(endpoint, path, body, who, **options)
    assert answer.code in (200, 201), answer.body
    return answer.body


def _owners(obj: dict[str, Any]) -> dict[str, Any]:
    entries = obj["metadata"].get("managedFields", ())
    return {f"{entry['manager']} {entry['operation']}": entry["fieldsV1"] for entry in entries}


def _deployment(**container: Any) -> dict[str, Any]:
    labels = {"app": "web"}
    main = {"name": "main", "image": "web:1", **container}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [main]}},
        },
    }


def test_what_is_not_there_is_made(endpoint: Endpoint) -> None:
    first = _apply(endpoint, f"{MAPS}/a", config_map("a", x="1"))
    assert first.code == 201
    (entry,) = first.body["metadata"]["managedFields"]
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}}}
    assert entry["fieldsType"] == "FieldsV1"
    assert entry["apiVersion"] == "v1"
    again = _apply(endpoint, f"{MAPS}/a", config_map("a", x="1"))
    assert again.code == 200
    assert again.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]


def test_yaml_bodies(endpoint: Endpoint) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata: {when: '2001-01-01'}\n"
    assert _applied(endpoint, f"{MAPS}/a", body)["data"] == {"when": "2001-01-01"}
    made = endpoint.call(
        "POST", MAPS, body.replace(b"name: a", b"name: b"), media="application/yaml"
    )
    assert made.code == 201
    assert _apply(endpoint, f"{MAPS}/a", b"a: [b").code == 400
    assert _apply(endpoint, f"{MAPS}/a", b"- a").code == 400


def test_a_conflict_names_the_fields_and_their_managers(endpoint: Endpoint) -> None:
    _applied(endpoint, f"{MAPS}/a", config_map("a", x="1", y="1"))
    refused = _apply(endpoint, f"{MAPS}/a", config_map("a", x="2"), "two")
    assert refused.code == 409
    assert refused.body["message"] == ('Apply failed with 1 conflict: conflict with "one": .data.x')
    assert refused.body["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.x"}
    ]
    both = _apply(endpoint, f"{MAPS}/a", config_map("a", x="2", y="2"), "two")
    assert both.body["message"] == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .data.x\n- .data.y'
    )
    assert endpoint.ok("GET", f"{MAPS}/a")["data"] == {"x": "1", "y": "1"}
    forced = _applied(endpoint, f"{MAPS}/a", config_map("a", x="2"), "two", force="true")
    assert forced["data"] == {"x": "2", "y": "1"}
    assert _owners(forced) == {
        "one Apply": {"f:data": {"f:y": {}}},
        "two Apply": {"f:data": {"f:x": {}}},
    }


def test_two_may_want_the_same(endpoint: Endpoint) -> None:
    _applied(endpoint, f"{MAPS}/a", config_map("a", x="1"))
    shared = _applied(endpoint, f"{MAPS}/a", config_map("a", x="1"), "two")
    assert _owners(shared) == {
        "one Apply": {"f:data": {"f:x": {}}},
        "two Apply": {"f:data": {"f:x": {}}},
    }
    left = _applied(endpoint, f"{MAPS}/a", config_map("a"), "one")
    assert left["data"] == {"x": "1"}, "the other still wants it"
    assert list(_owners(left)) == ["two Apply"]
    gone = _applied(endpoint, f"{MAPS}/a", config_map("a"), "two")
    assert "data" not in gone


def test_what_is_no_longer_stated_goes(endpoint: Endpoint) -> None:
    labelled = {"metadata": {"name": "a", "labels": {"l": "1"}, "annotations": {"n": "1"}}}
    _applied(endpoint, f"{MAPS}/a", config_map("a", x="1", y="2") | labelled)
    endpoint.ok("PATCH", f"{MAPS}/a", {"data": {"z": "3"}}, media=MERGE)
    less = _applied(endpoint, f"{MAPS}/a", config_map("a", x="1"))
    assert less["data"] == {"x": "1", "z": "3"}
    assert "labels" not in less["metadata"]
    assert "annotations" not in less["metadata"]


def test_an_update_takes_what_it_changes(endpoint: Endpoint) -> None:
    made = endpoint.ok("POST", MAPS, config_map("a", x="1"), fieldManager="maker")
    assert _owners(made) == {"maker Update": {"f:data": {".": {}, "f:x": {}}}}
    _applied(endpoint, f"{MAPS}/a", config_map("a", y="1"))
    patch = {"data": {"x": "2", "y": "2"}}
    changed = endpoint.ok("PATCH", f"{MAPS}/a", patch, media=MERGE, fieldManager="changer")
    assert _owners(changed) == {
        "maker Update": {"f:data": {}},
        "changer Update": {"f:data": {"f:x": {}, "f:y": {}}},
    }
    refused = _apply(endpoint, f"{MAPS}/a", config_map("a", y="1"))
    assert refused.code == 409
    assert 'conflict with "changer" using v1: .data.y' in refused.body["message"]


def test_lists_are_merged_by_their_keys(endpoint: Endpoint) -> None:
    path = f"{DEPLOYMENTS}/web"
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]
    made = _applied(endpoint, path, _deployment(env=env, ports=[{"containerPort": 80}]))
    owned = _owners(made)["one Apply"]["f:spec"]["f:template"]["f:spec"]["f:containers"]
    container = owned['k:{"name":"main"}']
    assert container["f:ports"] == {
        'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}
    }
    assert sorted(container["f:env"]) == ['k:{"name":"A"}', 'k:{"name":"B"}']
    other = _deployment(env=[{"name": "C", "value": "3"}])
    del other["spec"]["template"]["spec"]["containers"][0]["image"]
    del other["spec"]["selector"]
    both = _applied(endpoint, path, other, "two")
    names = [one["name"] for one in both["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert names == ["A", "B", "C"]
    less = _applied(endpoint, path, _deployment(env=[{"name": "B", "value": "2"}]))
    found = less["spec"]["template"]["spec"]["containers"][0]
    assert found["env"] == [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}]
    assert "ports" not in found
    assert found["terminationMessagePath"] == "/dev/termination-log"


def test_a_set_and_an_atomic_map(endpoint: Endpoint) -> None:
    path = f"{ACCOUNTS}/a"
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}
    held = body | {"metadata": {"name": "a", "finalizers": ["x.dev/a", "x.dev/b"]}}
    made = _applied(endpoint, path, held)
    assert _owners(made)["one Apply"] == {
        "f:metadata": {"f:finalizers": {'v:"x.dev/a"': {}, 'v:"x.dev/b"': {}}}
    }
    other = body | {"metadata": {"name": "a", "finalizers": ["x.dev/c"]}}
    both = _applied(endpoint, path, other, "two")
    assert both["metadata"]["finalizers"] == ["x.dev/a", "x.dev/b", "x.dev/c"]
    left = _applied(endpoint, path, body)
    assert left["metadata"]["finalizers"] == ["x.dev/c"]
    _applied(endpoint, path, body, "two")
    assert "finalizers" not in endpoint.ok("GET", path)["metadata"]
    web = _applied(endpoint, f"{DEPLOYMENTS}/web", _deployment())
    assert _owners(web)["one Apply"]["f:spec"]["f:selector"] == {}


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"nope": 1}, 500, ".nope: field not declared in schema"),
        ({"data": {"x": 1}}, 500, ".data.x: expected string"),
        ({"kind": "Pod"}, 400, "invalid object type: /v1, Kind=Pod"),
        ({"metadata": {"name": "b"}}, 400, "does not match the name on the URL"),
        ({"metadata": {}}, 400, "name must be provided"),
        ({"metadata": {"name": "a", "managedFields": []}}, 400, "managedFields must be nil"),
        ({"metadata": {"name": "a", "uid": "other"}}, 409, "uid mismatch"),
    ],
)
def test_what_cannot_be_applied(
    endpoint: Endpoint, change: dict[str, Any], code: int, words: str
) -> None:
    answer = _apply(endpoint, f"{MAPS}/a", config_map("a") | change)
    assert answer.code == code, answer.body
    assert words in answer.body["message"]
    assert endpoint.call("GET", f"{MAPS}/a").code == 404


def test_the_options_are_checked(endpoint: Endpoint) -> None:
    nameless = endpoint.call("PATCH", f"{MAPS}/a", config_map("a"), media=APPLY)
    assert nameless.code == 422
    assert "fieldManager: Required value" in nameless.body["message"]
    endpoint.ok("POST", MAPS, config_map("a"))
    forced = endpoint.call("PATCH", f"{MAPS}/a", {"data": {}}, media=MERGE, force="true")
    assert forced.code == 422
    twice = _deployment(env=[{"name": "A"}, {"name": "A"}])
    answer = _apply(endpoint, f"{DEPLOYMENTS}/web", twice)
    assert 'duplicate entries for key [name="A"]' in answer.body["message"]


def test_a_stale_revision_is_a_conflict(endpoint: Endpoint) -> None:
    _applied(endpoint, f"{MAPS}/a", config_map("a", x="1"))
    stale = config_map("a", x="2")
    stale["metadata"]["resourceVersion"] = "1"
    assert _apply(endpoint, f"{MAPS}/a", stale).code == 409


def test_dry_run_changes_nothing(endpoint: Endpoint) -> None:
    shown = _applied(endpoint, f"{MAPS}/a", config_map("a", x="1"), dryRun="All")
    assert shown["data"] == {"x": "1"}
    assert endpoint.call("GET", f"{MAPS}/a").code == 404


def test_managed_fields_can_be_forgotten(endpoint: Endpoint) -> None:
    endpoint.ok("POST", MAPS, config_map("a", x="1"))
    reset: dict[str, Any] = {"metadata": {"managedFields": [{}]}}
    forgotten = endpoint.ok("PATCH", f"{MAPS}/a", reset, media=MERGE)
    assert "managedFields" not in forgotten["metadata"]
    plain = endpoint.ok("PATCH", f"{MAPS}/a", {"data": {"y": "1"}}, media=MERGE)
    assert "managedFields" not in plain["metadata"]
    refused = _apply(endpoint, f"{MAPS}/a", config_map("a", x="2"))
    assert 'conflict with "before-first-apply" using v1: .data.x' in refused.body["message"]
    kept = _applied(endpoint, f"{MAPS}/a", config_map("a", x="1"))
    assert set(_owners(kept)) == {"one Apply", "before-first-apply Update"}


def test_a_put_without_managed_fields_keeps_them(endpoint: Endpoint) -> None:
    made = _applied(endpoint, f"{MAPS}/a", config_map("a", x="1"))
    del made["metadata"]["managedFields"]
    put = endpoint.ok("PUT", f"{MAPS}/a", made | {"data": {"x": "1", "y": "2"}}, fieldManager="p")
    assert _owners(put) == {
        "one Apply": {"f:data": {"f:x": {}}},
        "p Update": {"f:data": {"f:y": {}}},
    }


def test_kubectl_takes_over_what_it_applied_itself(endpoint: Endpoint) -> None:
    before = config_map("a", x="1")
    noted = '{"apiVersion":"v1","data":{"x":"1"},"kind":"ConfigMap","metadata":{"name":"a"}}'
    before["metadata"]["annotations"] = {LAST_APPLIED: noted}
    endpoint.ok("POST", MAPS, before, fieldManager="kubectl-client-side-apply")
    assert _apply(endpoint, f"{MAPS}/a", config_map("a", x="2")).code == 409
    taken = _applied(endpoint, f"{MAPS}/a", config_map("a", x="2"), "kubectl")
    assert taken["data"] == {"x": "2"}
    assert '"x":"2"' in taken["metadata"]["annotations"][LAST_APPLIED]
    # What kubectl does next: it makes the old entry its new one.
    entries = taken["metadata"]["managedFields"]
    kept = [entry for entry in entries if entry["operation"] == "Apply"]
    patch = [
        {"op": "replace", "path": "/metadata/managedFields", "value": kept},
        {
            "op": "replace",
            "path": "/metadata/resourceVersion",
            "value": taken["metadata"]["resourceVersion"],
        },
    ]
    migrated = endpoint.ok("PATCH", f"{MAPS}/a", patch, media=JSON, fieldManager="kubectl")
    assert set(_owners(migrated)) == {"kubectl Apply"}


def test_custom_objects(endpoint: Endpoint, things: Kind) -> None:
    path = f"/apis/{things.api_version}/namespaces/{{ns}}/things/a"
    body = {"apiVersion": things.api_version, "kind": "Thing", "metadata": {"name": "a"}}
    first = body | {"spec": {"size": 1, "free": {"a": {"b": 1}, "list": [1, 2]}}}
    made = _applied(endpoint, path, first)
    assert _owners(made)["one Apply"]["f:spec"] == {
        "f:size": {},
        "f:free": {"f:a": {".": {}, "f:b": {}}, "f:list": {}},
    }
    assert made["spec"]["colour"] == "red"
    other = body | {"spec": {"size": 2}}
    assert _apply(endpoint, path, other, "two").code == 409
    status = body | {"status": {"phase": "Up"}}
    said = _applied(endpoint, f"{path}/status", status, "two")
    assert said["status"] == {"phase": "Up"}
    (entry,) = [e for e in said["metadata"]["managedFields"] if e.get("subresource")]
    assert entry["fieldsV1"] == {"f:status": {"f:phase": {}}}
    less = _applied(endpoint, path, body | {"spec": {"size": 1}})
    assert less["spec"] == {"size": 1, "colour": "red"}
    assert less["status"] == {"phase": "Up"}


def test_list_types_of_a_definition(endpoint: Endpoint, things: Kind) -> None:
    name = f"things.{things.group}"
    version = endpoint.ok("GET", f"{CRDS}/{name}")["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    text = {"type": "string"}
    properties["rows"] = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["id"],
        "items": {"type": "object", "required": ["id"], "properties": {"id": text, "v": text}},
    }
    properties["tags"] = {"type": "array", "x-kubernetes-list-type": "set", "items": text}
    properties["whole"] = {"type": "object", "x-kubernetes-map-type": "atomic",
                           "properties": {"a": text, "b": text}}  # fmt: skip
    endpoint.ok("PATCH", f"{CRDS}/{name}", {"spec": {"versions": [version]}}, media=MERGE)
    path = f"/apis/{things.api_version}/namespaces/{{ns}}/things/a"

    def body(**spec: Any) -> dict[str, Any]:
        head = {"apiVersion": things.api_version, "kind": "Thing", "metadata": {"name": "a"}}
        return head | {"spec": spec}

    mine = body(size=1, rows=[{"id": "a", "v": "1"}], tags=["x"], whole={"a": "1"})
    endpoint.eventually(lambda: _apply(endpoint, path, mine).code in (200, 201))
    endpoint.eventually(lambda: "rows" in _applied(endpoint, path, mine)["spec"])
    theirs = body(rows=[{"id": "b", "v": "2"}], tags=["y"])
    both = _applied(endpoint, path, theirs, "two")
    assert both["spec"]["rows"] == [{"id": "a", "v": "1"}, {"id": "b", "v": "2"}]
    assert both["spec"]["tags"] == ["x", "y"]
    assert _apply(endpoint, path, body(whole={"b": "2"}), "two").code == 409
    gone = _applied(endpoint, path, body(size=1))
    assert gone["spec"]["rows"] == [{"id": "b", "v": "2"}]
    assert gone["spec"]["tags"] == ["y"]
    assert "whole" not in gone["spec"]
