"""The estimated cost of an expression: one for each step, from the sizes of the data."""

from __future__ import annotations

import pytest

from bidplane.core.cel.ast import CallNode, Const, Ident, ListNode, Select
from bidplane.core.cel.cost import Estimate, ValueSize


def _no_parts(value: object, field: str | None) -> ValueSize | None:
    return None


SELF, NUMBER = Ident("self"), Const(0)
ELEMENT = CallNode("_[_]", (SELF, NUMBER))


@pytest.mark.parametrize(
    ("node", "cost"),
    [
        (NUMBER, 0),
        (SELF, 1),
        (Select(SELF, "a", test=False), 2),
        (Select(SELF, "a", test=True), 2),
        (ELEMENT, 2),  # the name and the index
        (CallNode("_[_]", (ELEMENT, SELF)), 4),  # two indexes and two names
        (ListNode((SELF, SELF)), 5),
    ],
)
def test_a_step_costs_one(node: object, cost: int) -> None:
    assert Estimate(_no_parts).of(node, {"self": ValueSize(10.0)}) == cost  # type: ignore[arg-type]
