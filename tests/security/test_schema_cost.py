"""
To check an object by the schema that an agent wrote takes bounded time and memory.

RE2 is linear in a text, and in the size of its program: `(a?){1000}a{1000}` is a short expression
and a large program. An enum, or a list of alternatives, is looked through for each item.
"""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from bidplane.core import cel
from bidplane.errors import ApiError
from bidplane.plane.admission import rules
from bidplane.wire import protobuf
from bidplane.wire.schema import crds, decode, shapes, validate

SECONDS = 3.0  # of CPU; each took minutes, and a busy machine counts more
LARGE = "^(a?){1000}(a{1000})b$"
WORDS = [f"word-{number:06}" for number in range(40_000)]

# A schema of items, and their values.
COSTLY: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "a large program for many texts": (
        {"type": "string", "pattern": LARGE},
        ["a" * 1000] * 1400,
    ),
    "a large program in alternatives": (
        {"type": "string", "anyOf": [{"pattern": LARGE}, {"pattern": f"{LARGE}c"}]},
        ["a" * 1000] * 1400,
    ),
    "a long enum": ({"type": "string", "enum": WORDS}, ["x"] * 100_000),
    "many alternatives": (
        {"type": "integer", "oneOf": [{"enum": [number]} for number in range(5000)]},
        [1] * 100_000,
    ),
    "many branches of many": (
        {"allOf": [{"anyOf": [{"type": "string"}] * 300}] * 300},
        [1] * 100_000,
    ),
    "many required fields": ({"type": "object", "required": WORDS}, [{}] * 100_000),
    "a long pattern in each message": (
        {"type": "string", "pattern": f"^({'|'.join(WORDS[:500])})$"},
        ["x"] * 100_000,
    ),
}


def check(schema: dict[str, Any], values: list[Any]) -> list[Any]:
    whole = {"type": "object", "properties": {"l": {"type": "array", "items": schema}}}
    return validate.problems({"l": values}, shapes.custom(whole))


@pytest.mark.parametrize("name", COSTLY)
def test_what_takes_too_long_is_refused_and_said(name: str) -> None:
    schema, values = COSTLY[name]
    before = time.thread_time()
    (cause,) = check(schema, values)
    assert time.thread_time() - before < SECONDS
    assert "takes too long" in cause.message
    assert cause.reason == "FieldValueForbidden"


def test_messages_take_bounded_memory() -> None:
    """Each of 100,000 wrong items would be told all of the 40,000 that it may be."""
    tracemalloc.start()
    try:
        check({"type": "string", "enum": WORDS}, ["x"] * 100_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20


def test_what_is_ordinary_is_checked() -> None:
    host = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$"
    assert check({"type": "string", "pattern": host}, ["www.example.com"] * 2000) == []
    assert check({"type": "string", "pattern": "^a+$"}, ["a" * 1_000_000]) == []
    assert check({"type": "string", "enum": WORDS[:100]}, WORDS[:100] * 100) == []
    (cause,) = check({"type": "integer", "not": {"enum": [3]}}, [1, 2, 3])
    assert cause.field == "l[2]"
    assert check({"type": "integer", "not": {}}, [1]) == []


@pytest.mark.parametrize(
    "fields",
    [
        {f"p{number}": {"type": "string", "default": "x"} for number in range(3000)},
        {"p": {"type": "string", "default": "x" * 100_000}},
        {"p": {"type": "object", "default": dict.fromkeys(WORDS[:5000], 1)}},
    ],
)
def test_defaults_make_no_large_object(fields: dict[str, Any]) -> None:
    items = {"type": "object", "properties": fields}
    shape = shapes.custom({"properties": {"l": {"type": "array", "items": items}}})
    before = time.thread_time()
    with pytest.raises(ApiError) as refused:
        decode.clean({"l": [{}] * 20_000}, shape, decode.DecodeReport())
    assert refused.value.code == 413
    assert time.thread_time() - before < SECONDS
    assert decode.clean({"l": [{}]}, shape, decode.DecodeReport())["l"][0]


def _definition(**more: Any) -> dict[str, Any]:
    names = {"plural": "things", "kind": "Thing"}
    spec = {"group": "a.test", "names": names, "scope": "Cluster", **more}
    return {"metadata": {"name": "things.a.test"}, "spec": spec}


def _version(name: str, **schema: Any) -> dict[str, Any]:
    whole = {"openAPIV3Schema": {"type": "object", **schema}}
    return {"name": name, "served": True, "storage": name == "v0", "schema": whole}


def test_a_definition_has_so_many_versions_and_no_more() -> None:
    few = [_version(f"v{number}") for number in range(crds.VERSIONS_LIMIT)]
    assert crds.problems(_definition(versions=few)) == []
    (cause,) = crds.problems(_definition(versions=[*few, _version("other")]))
    assert cause.message == "Too many: 51: must have at most 50 items"


def test_a_definition_has_so_many_rules_and_no_more() -> None:
    """Each takes milliseconds to compile, however short it is: 2,000 held the server for 10 s."""
    count = cel.SOURCES_LIMIT // cel.SOURCE_LEAST
    listed = [{"rule": f"self.a != 'x' || {number} > 0"} for number in range(count + 1)]
    fields = {"a": {"type": "string", "maxLength": 9}}
    before = time.thread_time()
    version = _version("v0", properties=fields, **{"x-kubernetes-validations": listed})
    (cause,) = rules.problems(_definition(versions=[version]))
    assert cause.reason == "FieldValueTooLong"
    assert time.thread_time() - before < SECONDS


def test_a_body_of_protobuf_has_so_many_fields_and_no_more() -> None:
    envelope = b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap"
    before = time.thread_time()
    for body in (envelope + b"\x0a\x00" * 1_500_000, envelope + b"\x22\x00" * 1_500_000):
        with pytest.raises(protobuf.ProtobufError, match="more than 200000 fields"):
            protobuf.decode(body)
    assert time.thread_time() - before < SECONDS
    assert protobuf.decode(envelope)["kind"] == "ConfigMap"


@pytest.mark.parametrize(
    "rule",
    [
        f"self.l.all(x, !x.matches('{LARGE}'))",
        f"self.l.all(x, x.find('{LARGE}') == '')",
        "self.l.all(x, !x.matches(self.p))",
    ],
)
def test_an_expression_in_a_rule_costs_what_its_program_does(rule: str) -> None:
    data = {"l": ["a" * 1000] * 200, "p": LARGE}
    before = time.thread_time()
    with pytest.raises(cel.OverBudget, match="cost limit exceeded"):
        cel.compile(rule, ("self",), "").evaluate({"self": data})
    assert time.thread_time() - before < 1
    small = cel.compile("self.l.all(x, x.matches('^a+$')) && self.l[0].matches(self.p)", ("self",))
    assert small.evaluate({"self": {"l": ["a" * 50] * 20, "p": "a"}}) is True
