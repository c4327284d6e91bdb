"""Tests that try more in `make explore` are run by it: drawn by Hypothesis, or `explored`."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
SOURCES = frozenset({"effort", "EXPLORING"})
SELECTED = frozenset({"given", "explored"})


def _names(node: ast.AST) -> frozenset[str]:
    """Return the names and attributes in a piece of code."""
    return frozenset(
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    )


def left_out(source: str) -> list[str]:
    """Return the tests of a module that depend on `effort`, and that `make explore` passes over."""
    tree = ast.parse(source)
    marks = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        )
    ]
    if any(_names(mark) & SELECTED for mark in marks):
        return []
    dependent = set(SOURCES)
    for _ in tree.body:  # until nothing is added: each may depend on the one after it
        for node in tree.body:
            if isinstance(node, ast.Assign) and _names(node.value) & dependent:
                dependent |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
                _names(node) & dependent
            ):
                dependent.add(node.name)
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and node.name in dependent
        and not any(_names(mark) & SELECTED for mark in node.decorator_list)
    ]


def test_more_effort_is_made_where_it_is_asked_for() -> None:
    found = {
        f"{path.relative_to(TESTS)}::{name}"
        for path in TESTS.rglob("test_*.py")
        if "from effort import" in (source := path.read_text())
        for name in left_out(source)
    }
    assert not found, "mark them with pytest.mark.explored"


def test_the_check_finds_what_is_left_out() -> None:
    source = """
ROUNDS = effort(1, 9)
kinds = pytest.mark.parametrize("kind", [1])

def rounds():
    return range(ROUNDS)

@kinds
def test_left_out(kind):
    rounds()

@pytest.mark.explored
def test_marked():
    rounds()

@settings(max_examples=ROUNDS)
@given(1)
def test_drawn(n):
    pass

def test_of_one_case():
    pass
"""
    assert left_out(source) == ["test_left_out"]
    assert left_out(f"pytestmark = pytest.mark.explored\n{source}") == []
