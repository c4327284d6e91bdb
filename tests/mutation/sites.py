"""
The places where a source file can be changed so that it means something else.

A change is small and keeps the file valid: a comparison moves its bound, a sum becomes a
difference, a condition is inverted, a constant is one more, a statement is left out. Types,
docstrings and messages are not changed, because no test has to notice those.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclasses.dataclass(frozen=True, order=True)
class Mutant:
    """One change of one file: the text between two positions, and what replaces it."""

    file: Path
    line: int
    start: int  # offsets in the file's bytes
    end: int
    replacement: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.end :]

    def before(self, source: bytes) -> str:
        """Return the text that the mutant replaces, on one line."""
        return " ".join(source[self.start : self.end].decode().split())

    def describe(self, source: bytes) -> str:
        return (
            f"{self.file}:{self.line}: {self.before(source)} → {' '.join(self.replacement.split())}"
        )


def mutants(file: Path, source: bytes) -> Iterator[Mutant]:
    """Every change of a file that can be made, in the order of the text."""
    lines = source.split(b"\n")
    offsets = [0]
    for text in lines:
        offsets.append(offsets[-1] + len(text) + 1)
    for node, replacement in _changes(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[node.end_lineno - 1] + node.end_col_offset
        yield Mutant(file, node.lineno, start, end, replacement)


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for node in _meaningful(tree):
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
                changed = ast.Compare(node.left, [_COMPARISONS[type(operator)]()], node.comparators)
                yield node, f"({ast.unparse(changed)})"
            case ast.BinOp() if type(node.op) in _ARITHMETIC and not _is_text(node):
                changed_sum = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
                yield node, f"({ast.unparse(changed_sum)})"
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield node, f"({ast.unparse(ast.BoolOp(other, node.values))})"
            case ast.UnaryOp(op=ast.Not()):
                yield node, f"({ast.unparse(node.operand)})"
            case ast.Constant(value=bool()):
                yield node, str(not node.value)
            case ast.Constant(value=int(number)):
                yield node, str(number + 1)
            case ast.If() | ast.While():
                yield node.test, f"(not ({ast.unparse(node.test)}))"
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield node, "pass"


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in sides
    )


def _meaningful(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide something at run time: no annotations, no messages, no decorators."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "msg"):
            continue
        if isinstance(node, ast.AnnAssign) and name == "target":
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            yield child
            yield from _meaningful(child)
