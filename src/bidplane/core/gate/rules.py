"""
Policies, compiled: every condition is CEL that yields true or false.

The library answers an error with a true value; here `CelError` is raised instead, and its reader
denies. A Policy that does not compile is refused when it is written, so that the old one stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bidplane.api.gate.policy import PolicySpec
from bidplane.api.money import parse_amount
from bidplane.core import cel

VARIABLES = ("actor", "action", "target", "effect", "fleet", "time")


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
            program(source)
        except cel.CelError as error:
            yield f"{place}: {error}"


def _twice(names: Iterable[str]) -> list[str]:
    seen_names: set[str] = set()
    repeated: list[str] = []
    for name in names:
        if name in seen_names and name not in repeated:
            repeated.append(name)
        seen_names.add(name)
    return repeated
