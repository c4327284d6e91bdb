"""
The limits on the cost of a CRD's rules, when the CRD is written.

As upstream: a rule inside a list is evaluated once for each entry, and a rule, a message, or all of
them together whose estimate is beyond the limit are refused, with the fields that would bound it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from bidplane.core import cel
from bidplane.plane.admission import schemacost
from bidplane.plane.admission.schemacost import SchemaEstimate
from bidplane.wire.status import Cause

if TYPE_CHECKING:
    from bidplane.plane.admission.rules import RuleNode

RULE_LIMIT = 10_000_000
DEFINITION_LIMIT = 100_000_000
_NAMED = 4  # rules that are named when all together cost too much
_KEY = "x-kubernetes-validations"
_ADVICE = (
    " (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays,"
    " maps, and strings are declared)"
)


class _ExpressionCost(NamedTuple):
    path: str
    name: str  # in messages
    cost: float


def problems(root: RuleNode, path: str) -> list[Cause]:
    """Return the rules that may cost more than a rule may, or more than all may together."""
    costs = list(_costs(root, path, 1.0, is_root=True))
    causes = [
        _forbidden(entry.path, _over(f"estimated {entry.name} cost", entry.cost, RULE_LIMIT))
        for entry in costs
        if entry.cost > RULE_LIMIT
    ]
    total = sum(entry.cost for entry in costs)
    if total > DEFINITION_LIMIT:
        large = [entry for entry in costs if entry.cost >= DEFINITION_LIMIT / 100]
        large.sort(key=lambda entry: -entry.cost)
        causes += [
            _forbidden(
                entry.path,
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3"
                " schema",
            )
            for entry in large[:_NAMED]
        ]
        name = f"{_KEY} estimated rule cost total for entire OpenAPIv3 schema"
        causes.append(_forbidden(path, _over(name, total, DEFINITION_LIMIT)))
    return causes


def _forbidden(path: str, message: str) -> Cause:
    return Cause(f"Forbidden: {message}", path, "FieldValueForbidden")


def _over(name: str, cost: float, limit: int) -> str:
    factor = cost / limit
    text = (
        "more than 100x" if factor > 100 else f"{factor:f}x" if factor < 1.5 else f"{factor:.1f}x"
    )
    return f"{name} exceeds budget by factor of {text}{_ADVICE}"


def _costs(
    node: RuleNode, path: str, times: float | None, *, is_root: bool = False
) -> Iterator[_ExpressionCost]:
    """
    Yield the cost of each rule for all the values that it checks: `times`, or, where a list above
    has no bound (None), as many as a request holds. A message is made once.
    """
    estimate = SchemaEstimate(schemacost.with_root_fields(node.schema) if is_root else node.schema)
    count = times
    if count is None:
        count = schemacost.REQUEST_BYTES // (schemacost.least_bytes(node.schema) + 1)
    for index, rule in enumerate(node.rules):
        place = f"{path}.{_KEY}[{index}]"
        # As written: what we put around a rule to give it times or an optional is not its cost.
        cost = estimate.of(cel.compile(rule.source, ("self", "oldSelf")).tree)
        yield _ExpressionCost(f"{place}.rule", "rule", cost * count)
        if rule.message_program is not None:
            cost = estimate.of(rule.message_program.tree)
            yield _ExpressionCost(f"{place}.messageExpression", "messageExpression", cost)
    for name, child in node.fields.items():
        yield from _costs(child, f"{path}.properties[{name}]", times)
    if node.values is not None:
        many = _multiplied(times, node.schema, "maxProperties")
        yield from _costs(node.values, f"{path}.additionalProperties", many)
    if node.items is not None:
        many = _multiplied(times, node.schema, "maxItems")
        yield from _costs(node.items, f"{path}.items", many)


def _multiplied(times: float | None, schema: Mapping[str, Any], bound: str) -> float | None:
    most = schema.get(bound)
    return None if times is None or most is None else times * max(0, most)
