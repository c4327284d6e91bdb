"""
Expressions that agents write (rules of CRDs, policies, selectors of devices) cost what they may,
and no more: too much is refused before it runs, and where a schema tells, when it is written.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from bidplane.core import cel
from bidplane.core.cel import devices
from bidplane.core.policies import programs
from bidplane.plane.admission import rules

SECOND = 1.0  # of CPU: the longest that one request may hold a loop
DATA = {"s": "a" * 200_000, "l": list(range(3000)), "t": ["a" * 60] * 2000}
SIXTY = "[" + ",".join(["1"] * 60) + "]"
# Each ran for seconds, filled the memory or ended the process.
COSTLY = {
    "text that grows tenfold, ten times": "'aaaaaaaaaa'" + ".replace('a','aaaaaaaaaa')" * 10,
    "text put in for each of its letters": "self.s.replace('a', self.s)",
    "text joined by text": "self.l.map(x, self.s).join(self.s)",
    "text doubled in a loop": "self.l.map(x, self.s + self.s)",
    "a search in each turn": "self.l.all(x, !self.s.contains('aaaaaaaaaaaaaaaaaaaaaaaaab'))",
    "a backward search in each turn": "self.l.all(x, self.s.lastIndexOf('aaaaaaaaaaaaab') < 0)",
    "a pattern in each turn": "self.l.all(x, self.s.find('(a|aa)*b') == '')",
    "a copy in each turn": "self.l.all(x, self.s.reverse() != '')",
    "lists in lists": "self.l.map(x, self.l).map(x, x)",
    "sets in each turn": "self.l.all(x, sets.contains(self.l, self.l))",
    "letters against letters": "self.s.split('').all(x, self.s.split('').all(y, x == y))",
    "a format of formats": "'" + "%s" * 900 + "'.format([self.s])",
    "loops of literals": f"{SIXTY}.all(a, {SIXTY}.all(b, {SIXTY}.all(c, {SIXTY}.all(d, a > 0))))",
}
ORDINARY = (
    "self.l.all(x, x >= 0)",
    "self.s.size() == 200000 && self.s.startsWith('aaa')",
    "self.t.exists(x, x.contains('aa')) && self.s.matches('^a+$')",
    "self.l.filter(x, x > 10).size() == 2989",
    "cel.bind(n, self.l.size(), n * n > 0)",
)


@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_too_much_is_not_begun(name: str) -> None:
    before = time.thread_time()
    with pytest.raises(cel.OverBudget, match="cost limit exceeded"):
        cel.compile(COSTLY[name], ("self",), "").evaluate({"self": DATA})
    assert time.thread_time() - before < SECOND


@pytest.mark.parametrize("source", ORDINARY)
def test_what_is_ordinary_is_evaluated(source: str) -> None:
    assert cel.compile(source, ("self",)).evaluate({"self": DATA}) is True


def test_a_selector_of_devices_is_bounded() -> None:
    selector = devices.compile(COSTLY["text that grows tenfold, ten times"] + ".size() > 0")
    with pytest.raises(cel.CelError, match="cost limit exceeded"):
        selector.matches("gpu.bidplane.dev", False, {}, {})


def _definition(schema: dict[str, Any]) -> dict[str, Any]:
    whole = {"type": "object", "properties": {"spec": schema}}
    return {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": whole}}]}}


def _ruled(rule: str, **spec: Any) -> dict[str, Any]:
    return _definition({"type": "object", "x-kubernetes-validations": [{"rule": rule}], **spec})


TEXTS = {"type": "array", "items": {"type": "string"}}
SHORT = {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 100}}
NUMBERS = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("rule", "properties"),
    [
        ("self.a.all(x, x.matches('^[a-z]+$'))", {"a": TEXTS}),
        ("self.a.all(x, self.a.all(y, x != y))", {"a": NUMBERS}),
        ("self.s.replace('a', self.s).contains('abcdefghijk')", {"s": {"type": "string"}}),
    ],
)
def test_a_rule_without_bounds_is_refused_when_it_is_written(
    rule: str, properties: dict[str, Any]
) -> None:
    cause = rules.problems(_ruled(rule, properties=properties))[0]
    assert "estimated rule cost exceeds budget by factor of" in cause.message
    assert "maxItems, maxProperties, and maxLength" in cause.message
    assert cause.reason == "FieldValueForbidden"
    assert cause.field.endswith("x-kubernetes-validations[0].rule")


@pytest.mark.parametrize(
    ("rule", "properties"),
    [
        ("self.a.all(x, x.matches('^[a-z]+$'))", {"a": SHORT}),
        ("self.a.all(x, self.a.all(y, x != y || x == y))", {"a": SHORT}),
        ("self.a.all(x, x > 0)", {"a": NUMBERS}),
        ("self.s.matches('^[a-z]+$') && self.s != 'x'", {"s": {"type": "string"}}),
        ("has(self.n) == has(oldSelf.n) && self.n >= oldSelf.n", {"n": {"type": "integer"}}),
        ("self.a == oldSelf.a", {"a": TEXTS}),
    ],
)
def test_a_rule_that_can_be_afforded_is_not(rule: str, properties: dict[str, Any]) -> None:
    assert rules.problems(_ruled(rule, properties=properties)) == []


def test_a_rule_inside_lists_is_counted_for_each_entry() -> None:
    rule = [{"rule": "self.matches('^[a-z]+$')"}]
    texts: dict[str, Any] = {"type": "string", "x-kubernetes-validations": rule}
    inside: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": texts}},
    }
    assert "estimated rule cost" in rules.problems(_definition(inside))[0].message
    inside["properties"]["a"] |= {"maxItems": 20}
    texts["maxLength"] = 63
    assert rules.problems(_definition(inside)) == []


def test_all_rules_of_a_definition_have_a_limit_together() -> None:
    afforded = {"rule": "self.s.matches('^([a-z]+[0-9]+)+$')"}
    schema = {
        "type": "object",
        "properties": {"s": {"type": "string"}},
        "x-kubernetes-validations": [afforded] * 80,
    }
    *contributors, cause = rules.problems(_definition(schema))
    assert "total for entire OpenAPIv3 schema exceeds budget" in cause.message
    assert [c.message.split(" to ")[0] for c in contributors] == ["Forbidden: contributed"] * 4


def test_a_definition_that_was_stored_before_a_limit_may_be_changed_elsewhere() -> None:
    stored = _ruled("self.a.all(x, x.matches('^[a-z]+$'))", properties={"a": TEXTS})
    assert rules.problems(stored)
    assert rules.problems({**stored, "metadata": {"labels": {"a": "b"}}}, stored) == []
    wider = _ruled("self.a.all(x, x.matches('^[a-z]+$'))", properties={"a": TEXTS, "b": TEXTS})
    assert "estimated rule cost" in rules.problems(wider, stored)[0].message


def test_the_rules_of_one_object_share_a_budget() -> None:
    rule = {"rule": "self.l.all(x, self.s.size() > 0 && x.startsWith('a'))"}
    schema = {
        "type": "object",
        "properties": {"l": {"type": "array", "items": {"type": "string"}}, "s": TEXTS},
        "x-kubernetes-validations": [rule] * 200,
    }
    asked = rules.plan(schema)
    assert asked is not None
    assert rules.violations(asked, {"l": ["a"] * 10, "s": []})  # s is empty: each rule says no
    assert len(rules.violations(asked, {"l": ["a"] * 10, "s": []})) == 200
    before = time.thread_time()
    causes = rules.violations(asked, {"l": ["a"] * 4000, "s": ["b"]})
    assert time.thread_time() - before < SECOND
    (cause,) = causes
    assert "running out of cost budget, no further validation rules will be run" in cause.message


def test_expressions_of_a_definition_or_a_policy_are_short_enough_to_compile() -> None:
    sources = [f"self.s != '{n}{'x' * 1000}'" for n in range(100)]
    many = [{"rule": source} for source in sources]
    text = {"s": {"type": "string", "maxLength": 10}}
    definition = _definition(
        {"type": "object", "properties": text, "x-kubernetes-validations": many}
    )
    (cause,) = rules.problems(definition)
    assert "at most 65536 characters in all" in cause.message
    spec = {"validations": [{"expression": source} for source in sources]}
    (cause,) = programs.problems(spec)
    assert "at most 65536 characters in all" in cause.message


def test_policies_share_a_budget_for_one_request() -> None:
    spec = {"validations": [{"expression": "object.l.all(x, x.startsWith('a'))"}]}
    policy, budget = programs.policy(spec), cel.CostBudget()
    given = {"object": {"l": ["a"] * 5000}}
    decisions = [
        decision
        for _ in range(200)
        for decision in programs.Evaluation(policy, given, budget).decisions()
    ]
    assert "running out of cost budget" in decisions[0].message
