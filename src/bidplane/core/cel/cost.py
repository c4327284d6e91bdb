"""
The cost of an expression, estimated from above before it runs.

The library does not count cost: its only limit is 10,000 loop iterations. Replacing text by longer
text, or searching it in every iteration, has no limit. So we walk the parsed expression with
*sizes* in place of values: the sizes of the data, or, when a rule is written, the largest that its
schema allows. Factors are upstream's where it has some: a step costs 1, a character a tenth, a
comparison the size of the smaller side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bidplane.core.cel.ast import CallNode, Const, Ident, ListNode, Loop, Node, Select
from bidplane.wire import regex

CHAR = 0.1  # as upstream: text is traversed that much faster than a step is made
REGEX_CHAR = 0.25  # of a pattern, for each character of the text
TURNS_LIMIT = 10_000  # the library's own, for one evaluation
_HUGE = 1e15
_SEARCHES = ("matches", "find", "findAll")
# A text of a few characters, such as `(a{1,100}){1,100}`, is a program of many instructions. Of one
# that is not written in the expression, the largest that the library compiles is assumed.
_UNKNOWN_PATTERN = 50_000.0


class ValueSize(msgspec.Struct, frozen=True):
    """The size of a value; `below` is the value or schema that gives the sizes of its parts."""

    nodes: float = 1.0  # values in it, itself included
    chars: float = 0.0
    count: float | None = None  # of a list or a map: its entries; None: as many as it has nodes
    below: Any = None

    @property
    def entries(self) -> float:
        return self.nodes if self.count is None else self.count

    @property
    def weight(self) -> float:
        return self.nodes + self.chars * CHAR


_SMALL = ValueSize()
Environment = Mapping[str, ValueSize]
# (value or schema, field or None for an entry) → its size; None if it is unknown.
Step = Callable[[Any, "str | None"], "ValueSize | None"]


class Estimate:
    """An estimate of cost; `step` returns the sizes of parts of a value or schema."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def of(self, node: Node, sizes: Environment) -> float:
        return self._walk(node, sizes)[0]

    def _walk(self, node: Node, sizes: Environment) -> tuple[float, ValueSize]:
        match node:
            case Const():
                return 0.0, ValueSize(1.0, float(node.chars))
            case Ident():
                return 1.0, sizes.get(node.name, _SMALL)
            case Select():
                cost, size = self._walk(node.operand, sizes)
                return cost + 1, _SMALL if node.test else self._part(size, node.field)
            case ListNode():
                parts = [self._walk(item, sizes) for item in node.items]
                result_size = ValueSize(
                    1 + sum(size.nodes for _, size in parts),
                    sum(size.chars for _, size in parts),
                    float(len(parts)),
                )
                return sum(cost for cost, _ in parts) + 1 + len(parts), result_size
            case Loop():
                return self._loop(node, sizes)
            case CallNode():
                if node.function in ("_[_]", "_[?_]", "_?._"):
                    return self._index(node, sizes)
                parts = [self._walk(arg, sizes) for arg in node.args]
                arg_sizes = [size for _, size in parts]
                if node.function in _SEARCHES and len(node.args) > 1:
                    arg_sizes[1] = ValueSize(1.0, _pattern_size(node.args[1], arg_sizes[1]))
                cost, result_size = _call(node.function, arg_sizes)
                total = sum(spent for spent, _ in parts) + cost
                return min(total, _HUGE), ValueSize(
                    min(result_size.nodes, _HUGE),
                    min(result_size.chars, _HUGE),
                    result_size.count,
                    result_size.below,
                )
        raise AssertionError(node)

    def _part(self, size: ValueSize, field: str | None) -> ValueSize:
        """Return the size of a field of a value, or of its largest entry."""
        if size.below is not None:
            part_size = self._step(size.below, field)
            if part_size is not None:
                return part_size
        return ValueSize(size.nodes, size.chars)

    def _index(self, node: CallNode, sizes: Environment) -> tuple[float, ValueSize]:
        cost, size = self._walk(node.args[0], sizes)
        more, _ = self._walk(node.args[1], sizes)
        key = node.args[1].text if isinstance(node.args[1], Const) else None
        return cost + more + 1, self._part(size, key)

    def _loop(self, loop: Loop, sizes: Environment) -> tuple[float, ValueSize]:
        cost, ranged = self._walk(loop.range, sizes)
        turns = min(ranged.entries, TURNS_LIMIT)
        if isinstance(loop.range, ListNode) and not loop.range.items:
            turns = 0  # cel.bind
        spent, start = self._walk(loop.start, sizes)
        entry = self._part(ranged, None)
        inside = {**sizes, **dict.fromkeys(loop.variables, entry), loop.total: start}
        condition, _ = self._walk(loop.condition, inside)
        step, stepped = self._walk(loop.step, inside)
        grown = ValueSize(
            start.nodes + turns * max(0.0, stepped.nodes - start.nodes),
            start.chars + turns * max(0.0, stepped.chars - start.chars),
            None if not turns else turns if stepped.nodes > 1 else None,
            start.below if not turns else None,
        )
        if not turns:
            grown = start
        closing, result = self._walk(loop.result, {**sizes, loop.total: grown})
        return min(cost + spent + turns * (condition + step + 1) + closing, _HUGE), result


def _pattern_size(node: Node, size: ValueSize) -> float:
    """Return the size of a regular expression: its text's, or its program's if that is larger."""
    if not isinstance(node, Const) or node.text is None:
        return max(size.chars, _UNKNOWN_PATTERN)
    try:
        return max(size.chars, float(regex.compile(node.text).instructions))
    except regex.BadPattern:
        return size.chars  # it fails at once


def _call(function: str, sizes: list[ValueSize]) -> tuple[float, ValueSize]:
    """Return the cost of a call and its result's size; by default that of all arguments."""
    weights = [size.weight for size in sizes]
    whole = ValueSize(sum(size.nodes for size in sizes), sum(size.chars for size in sizes))
    match function, len(sizes):
        case "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_", 2:
            return 1 + min(weights), _SMALL
        case "_&&_" | "_||_" | "!_" | "size" | "type" | "@not_strictly_false", _:
            return 1.0, _SMALL
        case "_?_:_", 3:
            # Either branch may be the result.
            larger = max(sizes[1:], key=lambda size: size.weight)
            return 1.0, larger
        case "_+_", 2:
            count = sum(size.entries for size in sizes)
            return 1 + whole.weight, ValueSize(whole.nodes, whole.chars, count)
        case "@in" | "_in_" | "includes", 2:
            return 1 + sum(weights), _SMALL
        case "contains", 2:
            searched = math.ceil(sizes[0].chars * CHAR)
            return 1 + searched * max(1.0, math.ceil(sizes[1].chars * CHAR)), _SMALL
        case "indexOf" | "lastIndexOf", _:
            return 1 + sizes[0].chars * CHAR * max(1.0, sizes[1].chars * CHAR), _SMALL
        case "matches" | "find" | "findAll", _:
            matched = (
                ValueSize(1 + sizes[0].chars, sizes[0].chars) if function == "findAll" else sizes[0]
            )
            cost = (1 + sizes[0].chars) * CHAR * max(1.0, sizes[1].chars * REGEX_CHAR)
            return 1 + cost, _SMALL if function == "matches" else matched
        case "startsWith" | "endsWith", 2:
            return 1 + min(weights), _SMALL
        case "split", _:
            return 1 + 2 * sizes[0].chars, ValueSize(1 + sizes[0].chars, sizes[0].chars)
        case "replace", _ if len(sizes) >= 3:
            chars = (sizes[0].chars + 1) * (sizes[2].chars + 1)
            return 1 + weights[0] + chars * CHAR, ValueSize(1.0, chars)
        case "join", _:
            between = sizes[1].chars if len(sizes) > 1 else 0.0
            chars = sizes[0].chars + sizes[0].entries * between
            return 1 + sizes[0].nodes + chars * CHAR, ValueSize(1.0, chars)
        case "format", 2:
            # Each of the format's verbs may write all of the arguments.
            chars = sizes[0].chars * (1 + sizes[1].chars + 10 * sizes[1].nodes)
            return 1 + chars * CHAR, ValueSize(1.0, chars)
        case "sets.contains" | "sets.equivalent" | "sets.intersects", 2:
            return 1 + 2 * sizes[0].entries * max(1.0, min(weights)) + sum(weights), _SMALL
        case _:
            return 1 + sum(weights), ValueSize(whole.nodes, 2 * whole.chars)


_GROWING = frozenset(
    (
        *("contains", "indexOf", "lastIndexOf", "matches", "find", "findAll", "split", "replace"),
        *("join", "format", "sets.contains", "sets.equivalent", "sets.intersects", "_+_"),
    )
)


def flat_size(node: Node) -> int:
    """Return how many nodes `node` has, if each costs no more than its data's size; else 0."""
    match node:
        case Loop():
            return 0
        case CallNode() if node.function in _GROWING:
            return 0
        case Select():
            parts: tuple[Node, ...] = (node.operand,)
        case CallNode():
            parts = node.args
        case ListNode():
            parts = node.items
        case Const():
            return 1 + node.chars
        case _:
            return 1
    counts = [flat_size(part) for part in parts]
    return 0 if 0 in counts else 1 + sum(counts)


# Sizes of data.


class Measured:
    """The sizes of the values of one evaluation, each measured once."""

    def __init__(self) -> None:
        self._sizes: dict[
            int, tuple[Any, ValueSize]
        ] = {}  # by id; the value is stored so that its id stays unique

    def size(self, value: Any) -> ValueSize:
        if isinstance(value, str | bytes):
            return ValueSize(1.0, float(len(value)))
        if not isinstance(value, Mapping | list | tuple):
            return _SMALL
        cached = self._sizes.get(id(value))
        if cached is not None:
            return cached[1]
        nodes, chars = 1.0, 0.0
        if isinstance(value, Mapping):
            chars = float(sum(len(key) for key in value if isinstance(key, str)))
        for part in value.values() if isinstance(value, Mapping) else value:
            if isinstance(part, str):  # most of what there is
                nodes, chars = nodes + 1, chars + len(part)
                continue
            size = self.size(part)
            nodes, chars = nodes + size.nodes, chars + size.chars
        measured = ValueSize(nodes, chars, float(len(value)), value)
        self._sizes[id(value)] = (value, measured)
        return measured

    def step(self, value: Any, field: str | None) -> ValueSize | None:
        if isinstance(value, Mapping):
            if field is not None:
                return self.size(value[field]) if field in value else _SMALL
            keys = [self.size(key) for key in value]
            return _largest([*keys, *map(self.size, value.values())])
        if isinstance(value, list | tuple) and field is None:
            return _largest([self.size(item) for item in value])
        return None


def _largest(sizes: list[ValueSize]) -> ValueSize:
    """Return a size that none of `sizes` exceeds."""
    if len(sizes) == 1:
        return sizes[0]
    return ValueSize(
        max((size.nodes for size in sizes), default=1.0),
        max((size.chars for size in sizes), default=0.0),
        max((size.entries for size in sizes), default=0.0),
    )
