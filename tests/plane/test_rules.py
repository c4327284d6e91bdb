"""CEL rules of custom kinds, and names that two definitions want."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from bidplane.api.kinds import Kind

from .conftest import CRDS, Endpoint, thing_definition

MERGE = "application/merge-patch+json"
RULES = "x-kubernetes-validations"


def _spec() -> dict[str, Any]:
    text = {"type": "string", "maxLength": 10}
    return {
        "type": "object",
        RULES: [
            {"rule": "self.min <= self.max", "message": "min above max"},
            {"rule": "self.max < 100"},
            {
                "rule": "self.max != 7",
                "messageExpression": "self.max == 7 ? 'seven is taken' : 'never'",
                "reason": "FieldValueForbidden",
                "fieldPath": ".max",
            },
            {"rule": "self.max != 8 || self.other > 1"},
            {"rule": "!has(self.my__dash__field) || self.my__dash__field > 1", "message": "dash"},
            {"rule": "!has(self.__namespace__) || self.__namespace__ > 1", "message": "reserved"},
            {"rule": "!has(self.amount) || quantity(self.amount).isLessThan(quantity('4Gi'))"},
            {"rule": "!has(self.since) || self.since > timestamp('2020-01-01T00:00:00Z')"},
            {
                "rule": "!has(self.rows) || self.rows.filter(r, has(r.when))"
                ".all(r, r.when > timestamp('2020-01-01T00:00:00Z'))",
                "message": "a row is too old",
            },
        ],
        "properties": {
            "min": {"type": "integer"},
            "max": {"type": "integer"},
            "other": {"type": "integer"},
            "my-field": {"type": "integer"},
            "namespace": {"type": "integer"},
            "amount": text,
            "since": {"type": "string", "format": "date-time"},
            "name": {**text, RULES: [{"rule": "self == oldSelf", "message": "name is fixed"}]},
            "first": {
                **text,
                RULES: [
                    {
                        "rule": "oldSelf.hasValue() || self == 'first'",
                        "optionalOldSelf": True,
                        "message": "must begin as first",
                    }
                ],
            },
            "rows": {
                "type": "array",
                "maxItems": 5,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["id"],
                "items": {
                    "type": "object",
                    "required": ["id"],
                    "properties": {
                        "id": text,
                        "when": {"type": "string", "format": "date-time"},
                        "v": {
                            "type": "integer",
                            RULES: [{"rule": "self >= oldSelf", "message": "v only grows"}],
                        },
                    },
                },
            },
            "marks": {
                "type": "object",
                "maxProperties": 5,
                "additionalProperties": {**text, RULES: [{"rule": "self.startsWith('a')"}]},
            },
        },
    }


def _definition(kind: Kind, spec: dict[str, Any], **names: Any) -> dict[str, Any]:
    made = thing_definition(kind)
    made["spec"]["names"] = {"plural": kind.plural, "kind": kind.kind, **names}
    version = made["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"] = {"type": "object", "properties": {"spec": spec}}
    version["additionalPrinterColumns"] = []
    version["selectableFields"] = [{"jsonPath": ".spec.max"}] if "max" in str(spec) else []
    return made


@pytest.fixture
def ruled(endpoint: Endpoint) -> Iterator[str]:
    kind = Kind(f"r{secrets.token_hex(3)}.bidplane.test", "v1", "Ruled", "ruleds")
    endpoint.ok("POST", CRDS, _definition(kind, _spec()))
    path = f"/apis/{kind.api_version}/namespaces/{{ns}}/ruleds"
    endpoint.eventually(lambda: endpoint.call("GET", path).code == 200)
    body = {"apiVersion": kind.api_version, "kind": "Ruled", "metadata": {"name": "a"}}
    spec = {"min": 1, "max": 2, "name": "n", "first": "first", "marks": {"x": "ab"}}
    spec["rows"] = [{"id": "a", "v": 3}]
    endpoint.eventually(lambda: endpoint.call("POST", path, body | {"spec": spec}).code == 201)
    yield path
    endpoint.call("DELETE", f"{CRDS}/ruleds.{kind.group}")


@pytest.mark.parametrize(
    ("spec", "field", "words", "reason"),
    [
        ({"min": 3}, "spec", "Invalid value: min above max", "FieldValueInvalid"),
        ({"max": 100}, "spec", "failed rule: self.max < 100", "FieldValueInvalid"),
        ({"max": 7}, "spec.max", "Forbidden: seven is taken", "FieldValueForbidden"),
        ({"max": 8}, "spec", "no such key: other evaluating rule", "FieldValueInvalid"),
        ({"my-field": 1}, "spec", "dash", "FieldValueInvalid"),
        ({"namespace": 1}, "spec", "reserved", "FieldValueInvalid"),
        ({"amount": "5Gi"}, "spec", "failed rule", "FieldValueInvalid"),
        ({"since": "2001-01-01T00:00:00Z"}, "spec", "failed rule", "FieldValueInvalid"),
        (
            {"rows": [{"id": "a", "v": 3, "when": "2001-01-01T00:00:00Z"}]},
            "spec",
            "a row is too old",
            "FieldValueInvalid",
        ),
        ({"name": "z"}, "spec.name", 'Invalid value: "z": name is fixed', "FieldValueInvalid"),
        (
            {"rows": [{"id": "b", "v": 1}, {"id": "a", "v": 1}]},
            "spec.rows[1].v",
            "Invalid value: 1: v only grows",
            "FieldValueInvalid",
        ),
        ({"marks": {"x": "b"}}, "spec.marks[x]", 'Invalid value: "b": failed', "FieldValueInvalid"),
    ],
)
def test_a_rule_is_kept(
    endpoint: Endpoint, ruled: str, spec: dict[str, Any], field: str, words: str, reason: str
) -> None:
    before = endpoint.ok("GET", f"{ruled}/a")
    answer = endpoint.call("PATCH", f"{ruled}/a", {"spec": spec}, media=MERGE)
    assert answer.code == 422, answer.body
    (cause,) = answer.body["details"]["causes"]
    assert (cause["field"], cause["reason"]) == (field, reason)
    assert words in cause["message"]
    assert endpoint.ok("GET", f"{ruled}/a") == before


def test_what_rules_allow(endpoint: Endpoint, ruled: str) -> None:
    fine = {"max": 9, "first": "later", "amount": "3Gi", "since": "2021-01-01T00:00:00Z"}
    fine["rows"] = [{"id": "b", "v": 1}, {"id": "a", "v": 4, "when": "2021-01-01T00:00:00Z"}]
    assert endpoint.ok("PATCH", f"{ruled}/a", {"spec": fine}, media=MERGE)["spec"]["max"] == 9
    made = endpoint.ok("GET", f"{ruled}/a")
    fresh = {key: made[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": "b"}}
    refused = endpoint.call("POST", ruled, fresh | {"spec": {"min": 1, "max": 1, "first": "x"}})
    assert "must begin as first" in refused.body["message"]
    wrong = endpoint.call("POST", ruled, fresh | {"spec": {"min": "1", "max": 1}})
    assert "some validation rules were not checked" in wrong.body["message"]
    chosen = endpoint.ok("GET", ruled, fieldSelector="spec.max=9")["items"]
    assert [one["metadata"]["name"] for one in chosen] == ["a"]
    assert endpoint.ok("GET", ruled, fieldSelector="spec.max=2")["items"] == []
    assert endpoint.call("GET", ruled, fieldSelector="spec.min=1").code == 400


@pytest.mark.parametrize(
    ("rule", "field", "words"),
    [
        ({"rule": "self.min =="}, "rule", "compilation failed: ERROR: <input>:1:12: Syntax error"),
        ({"rule": "self.nope > 1"}, "rule", "undefined field 'nope'"),
        ({"rule": "1 + 1"}, "rule", "cel expression must evaluate to a bool"),
        ({"rule": ""}, "rule", "Required value: rule is not specified"),
        ({"rule": "nope(self)"}, "rule", "undeclared reference to 'nope'"),
        ({"rule": "true", "reason": "Odd"}, "reason", 'Unsupported value: "Odd"'),
        ({"rule": "true", "fieldPath": ".nope"}, "fieldPath", "must be a valid path"),
        ({"rule": "true\n&& true"}, "message", "message must be specified if rule contains"),
        ({"rule": "true", "messageExpression": "1"}, "messageExpression", "Invalid value"),
    ],
)
def test_rules_nobody_could_keep(
    endpoint: Endpoint, rule: dict[str, Any], field: str, words: str
) -> None:
    kind = Kind("bad.bidplane.test", "v1", "Bad", "bads")
    spec = {"type": "object", RULES: [rule], "properties": {"min": {"type": "integer"}}}
    answer = endpoint.call("POST", CRDS, _definition(kind, spec))
    assert answer.code == 422, answer.body
    (cause,) = answer.body["details"]["causes"]
    assert cause["field"].endswith(f".{RULES}[0].{field}")
    assert words in cause["message"]


def test_old_values_inside_a_plain_list(endpoint: Endpoint) -> None:
    kind = Kind("bad.bidplane.test", "v1", "Bad", "bads")
    item = {"type": "string", RULES: [{"rule": "self == oldSelf"}]}
    spec = {"type": "array", "maxItems": 3, "items": item}
    answer = endpoint.call("POST", CRDS, _definition(kind, spec))
    assert answer.code == 422
    assert "oldSelf cannot be used on the uncorrelatable portion" in answer.body["message"]


def test_two_definitions_want_one_name(endpoint: Endpoint) -> None:
    group = f"n{secrets.token_hex(3)}.bidplane.test"
    first = Kind(group, "v1", "Twin", "twins")
    second = Kind(group, "v1", "Twin", "others")
    free = {"type": "object"}
    endpoint.ok("POST", CRDS, _definition(first, free))
    endpoint.eventually(lambda: _condition(endpoint, f"twins.{group}", "Established") == "True")
    endpoint.ok("POST", CRDS, _definition(second, free, singular="other"))
    name = f"others.{group}"
    endpoint.eventually(lambda: _condition(endpoint, name, "NamesAccepted") == "False")
    found = endpoint.ok("GET", f"{CRDS}/{name}")["status"]
    (accepted,) = [one for one in found["conditions"] if one["type"] == "NamesAccepted"]
    assert accepted["reason"] == "ListKindConflict"
    assert accepted["message"] == '"TwinList" is already in use'
    assert found["acceptedNames"] == {"plural": "others", "singular": "other", "kind": ""}
    assert _condition(endpoint, name, "Established") == "False"
    assert endpoint.call("GET", f"/apis/{group}/v1/namespaces/{{ns}}/others").code == 404
    endpoint.ok("DELETE", f"{CRDS}/twins.{group}")
    endpoint.eventually(lambda: _condition(endpoint, name, "Established") == "True")
    path = f"/apis/{group}/v1/namespaces/{{ns}}/others"
    endpoint.eventually(lambda: endpoint.call("GET", path).code == 200)
    endpoint.call("DELETE", f"{CRDS}/{name}")


def _condition(endpoint: Endpoint, name: str, kind: str) -> str:
    status = endpoint.ok("GET", f"{CRDS}/{name}").get("status") or {}
    found = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return str(found.get(kind, ""))
