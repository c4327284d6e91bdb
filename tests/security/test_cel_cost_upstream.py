"""
The limits on the cost of CEL, beside a real kube-apiserver's.

A definition is accepted here if and only if it is accepted there: each row of `DEFINITIONS` has
the largest bound that its schema may have, found on a real server; one more is refused on both.
What an evaluation may cost differs where `EVALUATIONS` says so, and for the reason it gives.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from plane.conftest import CRDS, Endpoint, embedded, endpoint

__all__ = ["embedded", "endpoint"]

Schema = dict[str, Any]
RULES = "x-kubernetes-validations"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
NUMBER: Schema = {"type": "integer"}
PAIR: Schema = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 20}, "b": NUMBER},
}


def text(most: int) -> Schema:
    return {"type": "string", "maxLength": most}


def array(most: int, items: Schema = NUMBER) -> Schema:
    return {"type": "array", "maxItems": most, "items": items}


def mapping(most: int, values: Schema) -> Schema:
    return {"type": "object", "maxProperties": most, "additionalProperties": values}


def ruled(rule: str, schema: Schema) -> Schema:
    return {**schema, RULES: [{"rule": rule}]}


def spec(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties}


def over(rule: str, **fields: Callable[[int], Schema]) -> Callable[[int], Schema]:
    """A schema with a rule; each field gets the bound that the row is about."""
    return lambda n: ruled(rule, spec(**{name: make(n) for name, make in fields.items()}))


def same(schema: Schema) -> Callable[[int], Schema]:
    return lambda _: schema


def words(most: int) -> Callable[[int], Schema]:
    return lambda n: array(n, text(most))


def message(n: int) -> Schema:
    rule = {"rule": "self.a.size() > 0", "messageExpression": "self.a.join(',')"}
    return {**spec(a=array(n, text(1000))), RULES: [rule]}


_WORD = "self.matches('^[a-z]+$')"

DEFINITIONS: list[tuple[Callable[[int], Schema], int]] = [
    (over("self.a.all(x, x > 0)", a=array), 1_999_999),
    (over("self.a.exists(x, x == 3)", a=array), 1_999_999),
    (over("self.a.all(x, self.a.all(y, x != y))", a=array), 1413),
    (over("self.a.all(x, self.a.exists_one(y, x == y))", a=array), 1580),
    (over("self.a.all(x, self.a.all(y, self.a.all(z, x + y > z)))", a=array), 107),
    (over("self.a.filter(x, x > 0).size() > 0", a=array), 666_665),
    (over("self.a.map(x, x * 2).all(y, y > 0)", a=array), 526_315),
    (over("self.a.all(x, x.matches('^[a-z]+$'))", a=words(100)), 116_279),
    (over("self.a.all(x, x.matches('^[a-z]+$'))", a=lambda n: array(1000, text(n))), 12_492),
    (over("self.a.all(x, x.contains('abcdefghij'))", a=words(1000)), 24_752),
    (over("self.s.contains(self.t)", s=text, t=text), 7905),
    (over("self.a.all(x, x.startsWith('abc'))", a=words(100)), 1_999_999),
    (over("self.a.all(x, x.startsWith(self.s))", a=same(array(1000, text(100))), s=text), 24_982),
    (over("self.a.all(x, x == self.s)", a=same(array(1000, text(10**5))), s=text), 24_982),
    (over("self.a.all(x, x < self.s)", a=same(array(1000, text(10**5))), s=text), 24_982),
    (over("self.a.all(x, x in self.b)", a=same(array(1000)), b=array), 9993),
    (over("self.a.all(x, x in ['a', 'b', 'c'])", a=words(10)), 588_235),
    (over("self.m.all(k, k.matches('^[a-z]+$'))", m=lambda n: mapping(n, text(10))), 1_666_666),
    (over("self.m.all(k, self.m[k] == 'a')", m=lambda n: mapping(n, text(10))), 1_249_999),
    (over("self.a.all(x, self.a[0].matches('^[a-z]+$'))", a=words(100)), 113_636),
    (
        over("self.a.all(x, (x + self.s).size() > 0)", a=same(array(1000, text(100))), s=text),
        24_877,
    ),
    (over("(self.a + self.a).all(x, x > 0)", a=array), 999_999),
    (over("self.s.split(',').all(x, x != 'a')", s=text), 595_237),
    (over("self.a.join(',') != ''", a=words(1000)), 24_993),
    (over("self.s.replace('a', 'bbbb').contains('abcdefghijk')", s=text), 2_499_999),
    (over("self.a.all(x, x.replace('a', 'b') != '')", a=words(1000)), 12_437),
    (over("self.a.all(x, x.lowerAscii() != '')", a=words(1000)), 24_752),
    (over("self.a.all(x, x.find('[a-z]+') != '')", a=words(1000)), 12_406),
    (over("self.a.all(x, x.findAll('[a-z]+').size() > 0)", a=words(1000)), 12_376),
    (over("self.a.isSorted()", a=words(1000)), 24_937),
    (over("self.a.all(x, quantity(x).isLessThan(quantity('1k')))", a=words(1000)), 24_630),
    (over("self.a.all(x, x > 0 ? x < 100 : x > -100)", a=array), 1_428_571),
    (over("self.a.all(x, x > 0 && x < 100 || x == -1)", a=array), 1_249_999),
    (over("self.a.all(x, has(x.a) && x.b > 1)", a=lambda n: array(n, PAIR)), 1_428_571),
    (over("self.a.all(x, x.a.matches('^[a-z]+$'))", a=lambda n: array(n, PAIR)), 434_782),
    (over("self.a.all(x, [x, x].size() == 2)", a=array), 588_235),
    (over("self.a.all(x, {'a': x}.size() == 1)", a=array), 277_777),
    (over("sets.contains(self.a, self.b)", a=array, b=array), 3162),
    (
        over(
            "self.a.all(x, x == '10%')", a=lambda n: array(n, {"x-kubernetes-int-or-string": True})
        ),
        1_999_999,
    ),
    (
        over(
            "self.a.all(x, x != self.e)",
            a=words(1000),
            e=same({"type": "string", "enum": ["abcdefgh", "b"]}),
        ),
        1_428_571,
    ),
    (
        over(
            "self.a.all(x, x > timestamp('2020-01-01T00:00:00Z'))",
            a=lambda n: array(n, {"type": "string", "format": "date-time"}),
        ),
        1_666_666,
    ),
    # A rule is evaluated for each entry of the lists above it; one without a bound has as many
    # entries as a request holds.
    (lambda n: spec(a=array(n, ruled(_WORD, text(100)))), 120_481),
    (lambda n: spec(a=array(n, array(n, ruled(_WORD, text(100))))), 347),
    (lambda n: spec(a=mapping(n, ruled(_WORD, text(100)))), 120_481),
    (lambda n: spec(a={"type": "array", "items": ruled(_WORD, text(n))}), 9),
    (
        lambda n: spec(
            a={
                "type": "array",
                "items": ruled(
                    "self.x.matches('^[a-z]+$')", {**spec(x=text(n)), "required": ["x"]}
                ),
            }
        ),
        34,
    ),
    (lambda n: ruled(f"self.s.matches('{'a' * n}')", spec(s={"type": "string"})), 124),
    (
        lambda n: ruled(
            f"self.a.all(x, {' && '.join(['x > 0'] * n)})",
            spec(a={"type": "array", "items": NUMBER}),
        ),
        1,
    ),
    (message, 24_993),
    # All rules of a definition together.
    (
        lambda n: spec(
            **{
                f"s{at}": {
                    **text(100_000),
                    RULES: [{"rule": "self.matches('^[a-z]+[0-9]+[a-z]+$')"}] * 10,
                }
                for at in range(n)
            }
        ),
        49,
    ),
]


def definition(schema: Schema) -> dict[str, Any]:
    name = f"t{secrets.token_hex(4)}.bidplane.test"
    whole = {"type": "object", "properties": {"spec": schema}}
    version = {"name": "v1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{name}"},
        "spec": {
            "group": name,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{**version, "schema": {"openAPIV3Schema": whole}}],
        },
    }


def test_a_definition_is_accepted_up_to_the_same_bound(endpoint: Endpoint) -> None:
    for make, most in DEFINITIONS:
        answer = endpoint.call("POST", CRDS, definition(make(most)), dryRun="All")
        assert answer.code == 201, (make(most), answer.body)
        answer = endpoint.call("POST", CRDS, definition(make(most + 1)), dryRun="All")
        assert answer.code == 422, make(most + 1)
        cause = answer.body["details"]["causes"][-1]
        assert "exceeds budget by factor of 1." in cause["message"], cause
        assert cause["reason"] == "FieldValueForbidden"


def test_a_refusal_says_the_same(endpoint: Endpoint) -> None:
    make, most = DEFINITIONS[2]
    factors = ((most + 1, "1.000"), (2000, "2.0x"), (10**6, "more than 100x"))
    for bound, factor in factors:
        answer = endpoint.call("POST", CRDS, definition(make(bound)), dryRun="All")
        cause = answer.body["details"]["causes"][0]
        assert cause["message"].startswith(
            f"Forbidden: estimated rule cost exceeds budget by factor of {factor}"
        )
        path = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"
        assert cause["field"] == path


# A policy's expression, the largest object on which we and upstream evaluate it, and the reason
# where they differ.
_TURNS = "the library ends an evaluation after 10,000 turns of its loops"
_PATTERN = f"^({'a' * 35})*b"
EVALUATIONS: dict[str, tuple[str, int, int, str]] = {
    "pattern": (f"!object.data.s.matches('{_PATTERN}')", 999_999, 999_999, ""),
    "search": (f"!object.data.s.contains('{'a' * 200}b')", 476_180, 476_180, ""),
    "loop": ("object.data.s.split('').all(x, x == 'a')", 9999, 40_000, _TURNS),
    "loops": (
        "object.data.s.split('').all(x, object.data.s.split('').all(y, x == y))",
        92,
        400,
        _TURNS,
    ),
}


def test_an_evaluation_is_ended_at_the_same_cost_or_earlier(
    endpoint: Endpoint, request: pytest.FixtureRequest
) -> None:
    is_kube = "kube" in request.node.callspec.id
    made = [_make_policy(endpoint, name, EVALUATIONS[name][0]) for name in EVALUATIONS]
    made.append(_make_policy(endpoint, "last", "false"))
    try:
        endpoint.eventually(lambda: _refusal(endpoint, "last", 1))  # then all of them hold
        for name, (_, ours, theirs, reason) in EVALUATIONS.items():
            assert (ours < theirs) == bool(reason)
            most = theirs if is_kube else ours
            assert _refusal(endpoint, name, most * 99 // 100) == "", name
            if not (is_kube and reason == _TURNS and name == "loop"):  # it takes half a minute
                message = _refusal(endpoint, name, most * 101 // 100 + 1)
                assert "exceed" in message, (name, message)
    finally:
        for name in made:
            endpoint.call("DELETE", f"{BINDINGS}/{name}")
            endpoint.call("DELETE", f"{POLICIES}/{name}")


def _make_policy(endpoint: Endpoint, label: str, expression: str) -> str:
    name = f"{label}-{endpoint.namespace}"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
    }
    selector = {"matchLabels": {"evaluated": name}}
    policy = {
        "matchConstraints": {"resourceRules": [rule], "objectSelector": selector},
        "validations": [{"expression": expression}],
    }
    endpoint.ok("POST", POLICIES, {"metadata": {"name": name}, "spec": policy})
    binding = {"policyName": name, "validationActions": ["Deny"]}
    endpoint.ok("POST", BINDINGS, {"metadata": {"name": name}, "spec": binding})
    return name


def _refusal(endpoint: Endpoint, label: str, size: int) -> str:
    """The message of a policy about an object with a text of `size`; "" when it is accepted."""
    labels = {"evaluated": f"{label}-{endpoint.namespace}"}
    body = {"metadata": {"name": "x", "labels": labels}, "data": {"s": "a" * size}}
    path = "/api/v1/namespaces/{ns}/configmaps"
    answer = endpoint.call("POST", path, body, dryRun="All")
    return "" if answer.code == 201 else str(answer.body["message"])
