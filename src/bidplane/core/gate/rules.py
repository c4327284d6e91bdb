"""
Policies, compiled: every condition is CEL that yields true or false.

Which fields a condition may ask for is known, and so a misspelt one is found when the Policy is
written. Which labels and annotations a target has is not: a condition on one that is absent fails
when it is evaluated.

The library answers an error with a true value; here `CelError` is raised instead, and its reader
denies. A Policy that does not compile is refused when it is written, so that the old one stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bidplane.api.gate.policy import PolicySpec
from bidplane.api.money import parse_amount
from bidplane.core import cel
from bidplane.core.cel import ast

# Every variable of conditions, with an example of each of its fields.
FIELDS: dict[str, dict[str, Any]] = {
    "actor": {"name": "ann", "role": "owner"},
    "action": {"kind": "CordonNode", "name": "n1", "namespace": "", "value": ""},
    "target": {
        "kind": "Node",
        "name": "n1",
        "namespace": "",
        "agent": "",
        "labels": {},
        "annotations": {},
    },
    "effect": {"devices": 1, "pods": 1, "agents": 1, "spendPerHour": 1.0},
    "fleet": {"devices": 1, "leased": 1, "nodes": 1, "agents": 1, "pods": 1},
    "time": {"unix": 0, "date": "1970-01-01", "weekday": "Thursday", "hour": 0, "minute": 0},
}
VARIABLES = tuple(FIELDS)
# What the library answers to values of a type that an operator or the gate does not take.
_WRONG_TYPES = ("must evaluate to true or false", "No matching overloads")


def policy_problems(spec: PolicySpec) -> list[str]:
    """Return everything that is wrong with a Policy, each with its field."""
    problems = list(_condition_problems(spec))
    for group, names in (
        ("rules", [rule.name for rule in spec.rules]),
        ("limits", [limit.name for limit in spec.limits]),
        ("protections", [protection.name for protection in spec.protections]),
        ("freezes", [freeze.name for freeze in spec.freezes]),
    ):
        problems += [f"spec.{group}: the name {name!r} is used twice" for name in _twice(names)]
        if "" in names:
            problems.append(f"spec.{group}[{names.index('')}].name: give it a name")
    for i, limit in enumerate(spec.limits):
        try:
            if limit.spend:
                parse_amount(limit.spend)
        except ValueError as error:
            problems.append(f"spec.limits[{i}].spend: {error}")
    for i, rule in enumerate(spec.rules):
        if not rule.approvers:
            problems.append(f"spec.rules[{i}].approvers: name at least one role, such as owner")
    if long := cel.too_long(source for _, source in conditions(spec)):
        problems.append(f"spec: {long}")
    return problems


def conditions(spec: PolicySpec) -> Iterator[tuple[str, str]]:
    """Yield the place and the source of every condition."""
    for i, rule in enumerate(spec.rules):
        yield f"spec.rules[{i}].when", rule.when
    for i, protection in enumerate(spec.protections):
        yield f"spec.protections[{i}].when", protection.when
    for i, freeze in enumerate(spec.freezes):
        yield f"spec.freezes[{i}].when", freeze.when


def program(source: str) -> cel.CelProgram:
    """Compile a condition; raises `CelError`."""
    return cel.compile(source, VARIABLES)


def _condition_problems(spec: PolicySpec) -> Iterator[str]:
    for place, source in conditions(spec):
        try:
            compiled = program(source)
        except cel.CelError as error:
            yield f"{place}: {error}"
            continue
        problem = next(_unknown_fields(compiled.tree, frozenset()), "") or _wrong_type(compiled)
        if problem:
            yield f"{place}: {problem}"


def _unknown_fields(node: ast.Node, own: frozenset[str]) -> Iterator[str]:
    """Yield each field that no variable has. `own`: names that the expression declares itself."""
    match node:
        case ast.Select(operand=ast.Ident(name=name), field=field):
            yield from _unknown_field(name, field, own)
        case ast.CallNode(function="_[_]", args=(ast.Ident(name=name), ast.Const(text=str(field)))):
            yield from _unknown_field(name, field, own)
        case ast.Select(operand=operand):
            yield from _unknown_fields(operand, own)
        case ast.CallNode(args=parts) | ast.ListNode(items=parts):
            for part in parts:
                yield from _unknown_fields(part, own)
        case ast.Loop():
            inner = own | {*node.variables, node.total}
            for part in (node.range, node.start):
                yield from _unknown_fields(part, own)
            for part in (node.condition, node.step, node.result):
                yield from _unknown_fields(part, inner)


def _unknown_field(name: str, field: str, own: frozenset[str]) -> Iterator[str]:
    fields: Mapping[str, Any] | None = FIELDS.get(name)
    if fields is not None and name not in own and field not in fields:
        yield f"{name} has no field {field!r}: it has {', '.join(fields)}"


def _wrong_type(compiled: cel.CelProgram) -> str:
    """Return why a condition cannot be true or false, from one evaluation; "" if it may be."""
    try:
        compiled.evaluate(FIELDS)
    except cel.CelError as error:
        if any(text in str(error) for text in _WRONG_TYPES):
            return str(error)
    return ""


def _twice(names: Iterable[str]) -> list[str]:
    seen_names: set[str] = set()
    repeated: list[str] = []
    for name in names:
        if name in seen_names and name not in repeated:
            repeated.append(name)
        seen_names.add(name)
    return repeated
