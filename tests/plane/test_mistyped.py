"""
Values that their type cannot hold: refused on every way in, so that no typed client is blinded.

The messages are upstream's own: the same assertions run against a real kube-apiserver.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from bidplane.api.kinds import Kind

from .conftest import CRDS, Endpoint, config_map, thing_definition

MAPS = "/api/v1/namespaces/{ns}/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
EVENTS = "/api/v1/namespaces/{ns}/events"
NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/{ns}/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{ns}/deployments"
JSON, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
MICRO = '"2006-01-02T15:04:05.000000Z07:00"'
SECOND = '"2006-01-02T15:04:05Z07:00"'


def deployment(**spec: Any) -> dict[str, Any]:
    labels = {"app": "x"}
    container = {"name": "main", "image": "busybox:1"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            **spec,
        },
    }


def refused(answer: Any, code: int, reason: str, words: str) -> None:
    assert (answer.code, answer.body.get("reason", "")) == (code, reason), answer.body
    assert words in answer.body["message"]


@pytest.mark.parametrize(
    ("text", "at"),
    [("!!", 0), ("YQ", 0), ("YQ=", 3), ("YQ===", 4), ("YQ==x", 4), ("Y", 0), ("é", 0)],
)
def test_binary_data_that_is_not_base64_is_refused(endpoint: Endpoint, text: str, at: int) -> None:
    answer = endpoint.call("POST", MAPS, {**config_map("x"), "binaryData": {"x": text}})
    words = 'ConfigMap in version "v1" cannot be handled as a ConfigMap: illegal base64 data at'
    refused(answer, 400, "BadRequest", f"{words} input byte {at}")


@pytest.mark.parametrize(("sent", "kept"), [("YWJj\n", "YWJj"), ("YR==", "YQ=="), ("", "")])
def test_base64_is_kept_in_its_plain_form(endpoint: Endpoint, sent: str, kept: str) -> None:
    made = endpoint.ok("POST", MAPS, {**config_map("x"), "binaryData": {"x": sent}})
    assert made["binaryData"] == {"x": kept}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("bad", f'parsing time "bad" as {MICRO}: cannot parse "bad" as "2006"'),
        ("2026-01-01T00:00:00Z", f'as {MICRO}: cannot parse "Z" as ".000000"'),
        ("2026-01-01T00:00:00.5Z", f'as {MICRO}: cannot parse ".5Z" as ".000000"'),
        ("2026-13-01T00:00:00.000000Z", "month out of range"),
        ("2026-02-30T00:00:00.000000Z", "day out of range"),
        ("2026-01-01T25:00:00.000000Z", "hour out of range"),
        ("2026-01-01T00:00:00.000000Zx", 'extra text: "x"'),
        (5, "json: cannot unmarshal number into Go struct field LeaseSpec.spec.renewTime of type"),
    ],
)
def test_a_lease_with_a_bad_time_is_refused(endpoint: Endpoint, value: Any, words: str) -> None:
    lease = {"metadata": {"name": "x"}, "spec": {"renewTime": value}}
    refused(endpoint.call("POST", LEASES, lease), 400, "BadRequest", words)


def test_times_are_kept_in_utc_to_what_their_type_holds(endpoint: Endpoint) -> None:
    lease = {"metadata": {"name": "x"}, "spec": {"renewTime": "2026-01-01T02:00:00.123456+02:00"}}
    made = endpoint.ok("POST", LEASES, lease)
    assert made["spec"]["renewTime"] == "2026-01-01T00:00:00.123456Z"
    event = {
        "metadata": {"name": "x"},
        "involvedObject": {"namespace": endpoint.namespace},
        "firstTimestamp": "2026-01-01T00:00:00.5Z",
        "lastTimestamp": "2026-01-01T02:00:00+02:00",
    }
    made = endpoint.ok("POST", EVENTS, event)
    assert made["firstTimestamp"] == made["lastTimestamp"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("bad", f'parsing time "bad" as {SECOND}: cannot parse "bad" as "2006"'),
        ("20260101", f'as {SECOND}: cannot parse "0101" as "-"'),
        ("2026-01-01T00:00:00", f'as {SECOND}: cannot parse "" as "Z07:00"'),
    ],
)
def test_an_event_and_a_taint_with_a_bad_time_are_refused(
    endpoint: Endpoint, value: str, words: str
) -> None:
    event = {
        "metadata": {"name": "x"},
        "involvedObject": {"namespace": endpoint.namespace},
        "lastTimestamp": value,
    }
    refused(endpoint.call("POST", EVENTS, event), 400, "BadRequest", words)
    taint = {"key": "a", "effect": "NoExecute", "timeAdded": value}
    node = {"metadata": {"name": "x"}, "spec": {"taints": [taint]}}
    refused(endpoint.call("POST", NODES, node), 400, "BadRequest", words)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3_000_000_000, "number 3000000000"),
        (2**63, f"number {2**63}"),
        (1.5, "number 1.5"),
        ("3", "string"),
        (True, "bool"),
    ],
)
def test_replicas_that_no_int32_holds_are_refused(
    endpoint: Endpoint, value: Any, shown: str
) -> None:
    answer = endpoint.call("POST", DEPLOYMENTS, deployment(replicas=value))
    field = "struct field DeploymentSpec.spec.replicas of type int32"
    refused(answer, 400, "BadRequest", f"json: cannot unmarshal {shown} into Go {field}")


def test_what_stands_deep_in_an_object_is_named(endpoint: Endpoint) -> None:
    surge = {"rollingUpdate": {"maxSurge": 3_000_000_000}}
    answer = endpoint.call("POST", DEPLOYMENTS, deployment(strategy=surge))
    field = "RollingUpdateDeployment.spec.strategy.rollingUpdate.maxSurge of type int32"
    refused(answer, 400, "BadRequest", f"number 3000000000 into Go struct field {field}")
    port = {"name": "c", "image": "i", "ports": [{"containerPort": "80"}]}
    answer = endpoint.call(
        "POST", PODS, {"metadata": {"name": "x"}, "spec": {"containers": [port]}}
    )
    field = "ContainerPort.spec.containers.ports.containerPort of type int32"
    refused(answer, 400, "BadRequest", f"string into Go struct field {field}")
    answer = endpoint.call("POST", MAPS, {"metadata": {"name": "x", "labels": {"a": 1}}})
    field = "ObjectMeta.metadata.labels of type string"
    refused(answer, 400, "BadRequest", f"number into Go struct field {field}")
    answer = endpoint.call("POST", PODS, {"metadata": {"name": "x"}, "spec": {"containers": {}}})
    field = "PodSpec.spec.containers of type []v1.Container"
    refused(answer, 400, "BadRequest", f"object into Go struct field {field}")


@pytest.mark.parametrize("value", ["1x", True, {"a": 1}])
def test_a_quantity_that_is_none_is_refused(endpoint: Endpoint, value: Any) -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": {"memory": value}}}
    answer = endpoint.call(
        "POST", PODS, {"metadata": {"name": "x"}, "spec": {"containers": [container]}}
    )
    words = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*"
    refused(answer, 400, "BadRequest", words)


def test_a_quantity_past_any_machine_is_refused_at_once(plane: Endpoint) -> None:
    # Upstream computes the power, for a minute, and answers 504.
    container = {"name": "c", "image": "i", "resources": {"limits": {"memory": "1e99999999999"}}}
    answer = plane.call(
        "POST", PODS, {"metadata": {"name": "x"}, "spec": {"containers": [container]}}
    )
    refused(answer, 400, "BadRequest", "unable to parse quantity's suffix")


def test_every_way_in_refuses_what_is_not_base64(endpoint: Endpoint) -> None:
    endpoint.ok("POST", MAPS, config_map("x", k="v"))
    words = "illegal base64 data at input byte 0"
    wrong = {"binaryData": {"x": "!!"}}
    refused(
        endpoint.call("PUT", f"{MAPS}/x", {**config_map("x"), **wrong}), 400, "BadRequest", words
    )
    patch = [{"op": "add", "path": "/binaryData", "value": {"x": "!!"}}]
    for media, body in ((MERGE, wrong), (STRATEGIC, wrong), (JSON, patch)):
        answer = endpoint.call("PATCH", f"{MAPS}/x", body, media=media)
        refused(answer, 422, "Invalid", words)
        assert answer.body["message"].startswith(' "" is invalid: patch: Invalid value: "')
        assert answer.body["details"]["causes"][0]["field"] == "patch"
    applied = json.dumps({**config_map("x"), **wrong}).encode()
    answer = endpoint.call("PATCH", f"{MAPS}/x", applied, media=APPLY, fieldManager="test")
    refused(answer, 500, "", words)
    assert endpoint.ok("GET", f"{MAPS}/x").get("binaryData") is None


def test_every_way_in_refuses_too_many_replicas(endpoint: Endpoint) -> None:
    endpoint.ok("POST", DEPLOYMENTS, deployment())
    path, many = f"{DEPLOYMENTS}/x", {"spec": {"replicas": 3_000_000_000}}
    refused(endpoint.call("PUT", path, deployment(**many["spec"])), 400, "BadRequest", "int32")
    refused(endpoint.call("PATCH", path, many, media=MERGE), 422, "Invalid", "of type int32")
    # There upstream cuts the number down to 32 bits, and refuses what is left of it.
    assert endpoint.call("PATCH", path, many, media=STRATEGIC).code == 422
    applied = json.dumps(deployment(**many["spec"])).encode()
    assert (
        endpoint.call("PATCH", path, applied, media=APPLY, fieldManager="t", force="true").code
        == 422
    )
    scale = {"metadata": {"name": "x"}, **many}
    words = "Scale: json: cannot unmarshal number 3000000000 into Go struct field ScaleSpec.spec"
    refused(endpoint.call("PUT", f"{path}/scale", scale), 400, "BadRequest", words)
    refused(endpoint.call("PATCH", f"{path}/scale", many, media=MERGE), 422, "Invalid", "int32")
    condition = {"type": "A", "status": "True", "lastUpdateTime": "bad"}
    wrong = {"status": {"conditions": [condition]}}
    refused(
        endpoint.call("PATCH", f"{path}/status", wrong, media=MERGE), 422, "Invalid", 'as "2006"'
    )
    assert endpoint.ok("GET", path)["spec"]["replicas"] == 0


def test_an_unknown_field_in_a_strict_patch_is_invalid(endpoint: Endpoint) -> None:
    endpoint.ok("POST", MAPS, config_map("x"))
    answer = endpoint.call("PATCH", f"{MAPS}/x", {"nope": 1}, media=MERGE, fieldValidation="Strict")
    refused(answer, 422, "Invalid", 'strict decoding error: unknown field "nope"')


def test_null_in_a_list_or_a_map_is_the_types_zero(endpoint: Endpoint) -> None:
    made = endpoint.ok("POST", MAPS, {"metadata": {"name": "x"}, "data": {"a": None}})
    assert made["data"] == {"a": ""}
    answer = endpoint.call(
        "POST", PODS, {"metadata": {"name": "x"}, "spec": {"containers": [None]}}
    )
    assert answer.code == 422
    assert "spec.containers[0].name: Required value" in answer.body["message"]


def test_a_binding_cannot_write_what_a_pod_cannot_hold(endpoint: Endpoint) -> None:
    container = {"name": "c", "image": "i"}
    endpoint.ok("POST", PODS, {"metadata": {"name": "x"}, "spec": {"containers": [container]}})
    binding = {"metadata": {"name": "x", "annotations": {"a": 1}}, "target": {"name": "n"}}
    answer = endpoint.call("POST", f"{PODS}/x/binding", binding)
    refused(answer, 400, "BadRequest", "ObjectMeta.metadata.annotations of type string")


# Custom kinds.

FORMATS: dict[str, dict[str, Any]] = {
    "small": {"type": "integer", "format": "int32"},
    "whole": {"type": "integer"},
    "short": {"type": "number", "format": "float"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "span": {"type": "string", "format": "duration"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "cidr": {"type": "string", "format": "cidr"},
    "mac": {"type": "string", "format": "mac"},
    "email": {"type": "string", "format": "email"},
    "uri": {"type": "string", "format": "uri"},
    "host": {"type": "string", "format": "hostname"},
    "label": {"type": "string", "format": "k8s-short-name"},
    "either": {"x-kubernetes-int-or-string": True},
    "mood": {"type": "string", "format": "nonsense"},
    "text": {"type": "string"},
    "usual": {"type": "string", "default": "x"},
    "nothing": {"type": "string", "nullable": True},
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
    "list": {"type": "array", "items": {"type": "string"}},
    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "letters": {"type": "string", "pattern": "^(?i)abc$"},
}


@pytest.fixture
def samples(endpoint: Endpoint) -> Iterator[str]:
    """The path of a custom kind that has a field of each format."""
    kind = Kind(f"f{secrets.token_hex(3)}.bidplane.test", "v1", "Thing", "things")
    crd = thing_definition(kind)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        schema["properties"][part] = {"type": "object", "properties": FORMATS}
    endpoint.ok("POST", CRDS, crd)
    path = f"/apis/{kind.api_version}/namespaces/{{ns}}/things"
    endpoint.eventually(lambda: endpoint.call("GET", path).code == 200)
    yield path
    endpoint.call("DELETE", f"{CRDS}/things.{kind.group}")


def _sample(path: str, **spec: Any) -> dict[str, Any]:
    api_version = path.removeprefix("/apis/").partition("/namespaces")[0]
    meta = {"name": "x"}
    return {"apiVersion": api_version, "kind": "Thing", "metadata": meta, "spec": spec}


def test_a_custom_object_is_refused_where_its_format_is_not_met(
    endpoint: Endpoint, samples: str
) -> None:
    for field, values in {
        "bytes": ("!!", "YQ", "", "YWJj\n"),
        "time": ("bad", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00"),
        "date": ("bad", "2026-02-30"),
        "span": ("bad", "1"),
        "uuid": ("x",),
        "ipv4": ("300.1.1.1", "::1"),
        "cidr": ("10.0.0.0",),
        "mac": ("x",),
        "email": ("x",),
        "uri": ("x",),
        "host": ("a b",),
        "label": ("A_b",),
    }.items():
        for value in values:
            answer = endpoint.call("POST", samples, _sample(samples, **{field: value}))
            format_ = FORMATS[field]["format"]
            shown = json.dumps(value)
            words = f"spec.{field} in body must be of type {format_}: {shown}"
            refused(answer, 422, "Invalid", f"spec.{field}: Invalid value: {shown}: {words}")
    for field, number, words in (
        ("small", 3_000_000_000, "type integer with format int32 in spec.small"),
        ("short", 1e39, "type number with format float in spec.short"),
        ("whole", 2**63, 'spec.whole in body must be of type integer: "number"'),
        ("whole", 1.5, 'spec.whole in body must be of type integer: "number"'),
        ("either", True, 'spec.either in body must be of type integer,string: "boolean"'),
        ("letters", "xabc", "should match '^(?i)abc$'"),
    ):
        answer = endpoint.call("POST", samples, _sample(samples, **{field: number}))
        refused(answer, 422, "Invalid", words)


def test_a_custom_object_that_meets_its_formats_is_kept(endpoint: Endpoint, samples: str) -> None:
    spec = {
        "small": 2**31 - 1, "whole": 2**62, "short": 1.5, "bytes": "YQ==",
        "time": "2026-01-01T00:00:00.5+02:00", "date": "2026-01-31", "span": "1h30m",
        "uuid": "6F2A1C1E-6d0b-4a55-9d4b-0f3a5b1f7c11", "ipv4": "10.0.0.1", "cidr": "10.0.0.0/8",
        "mac": "00:00:5e:00:53:01", "email": "a@example.com", "uri": "https://example.com/a",
        "host": "a.example.com", "label": "a-b", "either": 2**40, "mood": "anything",
        "letters": "ABC", "usual": "y",
    }  # fmt: skip
    assert endpoint.ok("POST", samples, _sample(samples, **spec))["spec"] == spec
    answer = endpoint.call("PATCH", f"{samples}/x", {"spec": {"time": "bad"}}, media=MERGE)
    refused(answer, 422, "Invalid", "must be of type date-time")
    answer = endpoint.call("PATCH", f"{samples}/x/status", {"status": {"time": "bad"}}, media=MERGE)
    refused(answer, 422, "Invalid", "must be of type date-time")


def test_null_in_a_custom_object_is_dropped(endpoint: Endpoint, samples: str) -> None:
    spec = {
        "text": None, "usual": None, "nothing": None, "whole": None, "list": None,
        "map": {"a": None, "b": "c"}, "free": {"a": None},
    }  # fmt: skip
    kept = {"usual": "x", "nothing": None, "map": {"b": "c"}, "free": {"a": None}}
    assert endpoint.ok("POST", samples, _sample(samples, **spec))["spec"] == kept
    answer = endpoint.call("POST", samples, _sample(samples, list=["a", None]))
    refused(answer, 422, "Invalid", 'spec.list[1] in body must be of type string: "null"')


def test_metadata_of_a_custom_object_is_typed(endpoint: Endpoint, samples: str) -> None:
    for meta, words in (
        ({"labels": {"a": 1}}, "number into Go struct field ObjectMeta.labels of type string"),
        ({"creationTimestamp": "x"}, 'parsing time "x"'),
        ({"finalizers": "x"}, "string into Go struct field ObjectMeta.finalizers of type []string"),
        ({"generation": "5"}, "string into Go struct field ObjectMeta.generation of type int64"),
    ):
        sample = _sample(samples)
        sample["metadata"] |= meta
        refused(endpoint.call("POST", samples, sample), 400, "BadRequest", words)


def test_a_schema_inside_a_schema_is_typed(endpoint: Endpoint) -> None:
    kind = Kind(f"f{secrets.token_hex(3)}.bidplane.test", "v1", "Thing", "things")
    crd = thing_definition(kind)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    items = {"type": "string", "minLength": "x"}
    schema["properties"]["spec"] = {
        "type": "object", "properties": {"a": {"type": "array", "items": items}}
    }  # fmt: skip
    field = "openAPIV3Schema.properties.properties.items.minLength of type int64"
    refused(endpoint.call("POST", CRDS, crd), 400, "BadRequest", field)


def test_a_pattern_that_re2_does_not_have_is_refused(endpoint: Endpoint) -> None:
    for pattern in ("(?=x)", "[a", r"(a)\1"):
        kind = Kind(f"f{secrets.token_hex(3)}.bidplane.test", "v1", "Thing", "things")
        crd = thing_definition(kind)
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        letters = {"type": "string", "pattern": pattern}
        schema["properties"]["spec"] = {"type": "object", "properties": {"a": letters}}
        words = "must be a valid regular expression, but isn't: error parsing regexp: "
        refused(endpoint.call("POST", CRDS, crd), 422, "Invalid", words)


def test_a_condition_of_a_definition_without_a_type_is_no_crash(endpoint: Endpoint) -> None:
    kind = Kind(f"f{secrets.token_hex(3)}.bidplane.test", "v1", "Thing", "things")
    endpoint.ok("POST", CRDS, thing_definition(kind))
    path = f"{CRDS}/things.{kind.group}"
    wrong = {"status": {"conditions": [{"status": "True"}]}}
    assert endpoint.call("PATCH", f"{path}/status", wrong, media=MERGE).code == 200
    assert endpoint.ok("GET", path)["spec"]["group"] == kind.group
    endpoint.ok("DELETE", path)
