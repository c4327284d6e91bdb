"""
Dates and durations in rules: text of a time format is a time to CEL, as its schema says.

The library takes times as variables, not inside an object, so the rule converts the text itself:
`self.since < x` becomes `timestamp(self.since) < x`. Which parts of a rule are such text is read
off the parsed rule and the schema, through fields, indexes, loop variables, filtered lists and
`cel.bind`. Results of other functions, such as `optional.value()` or `map`, are not followed: text
in them stays text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.core import cel
from bidplane.core.cel import CelError
from bidplane.core.cel.ast import CallNode, Ident, ListNode, Loop, Node, Select
from bidplane.plane.admission.identifiers import escape

_AS_TIME = {
    "date-time": ("timestamp(", ")"),
    "date": ("timestamp(", " + 'T00:00:00Z')"),
    "duration": ("duration(", ")"),
}
_ALWAYS = ("apiVersion", "kind", "metadata")  # in every object, whatever its schema says

Schema = Mapping[str, Any]
Scope = Mapping[str, Schema]  # the schemas of the variables; {} is unknown
_UNKNOWN: Schema = {}


def with_times(schema: Schema, source: str, *, optional_old: bool = False) -> str:
    """
    Return `source` with each text of a time format converted to a time.

    Raises `CelError` for a field that its schema does not have: values are untyped to the library,
    so that a misspelt name would only show on the first object.
    """
    tree = cel.compile(source, ("self", "oldSelf"), "").tree
    conversions = _Conversions(source)
    conversions.schema_of(tree, {"self": schema, "oldSelf": _UNKNOWN if optional_old else schema})
    return conversions.converted()


class _Conversions:
    """The places of one rule where text is converted."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._inserted: dict[tuple[int, int], tuple[str, str]] = {}  # (start, end) → before, after

    def converted(self) -> str:
        """Return the source with all conversions."""
        insertions = []
        for (start, end), (before, after) in self._inserted.items():
            # At one position an inner part ends before an outer one ends, and begins after it.
            insertions += [(start, 1, -end, before), (end, 0, -start, after)]
        parts, position = [], 0
        for at, _, _, text in sorted(insertions):
            parts += [self._source[position:at], text]
            position = at
        return "".join([*parts, self._source[position:]])

    def schema_of(self, node: Node, scope: Scope) -> Schema:
        """Return the schema of a part's value, and record what must be converted in it."""
        match node:
            case Ident():
                return self._noted(node, scope.get(node.name, _UNKNOWN))
            case Select():
                schema = _field(self.schema_of(node.operand, scope), node.field)
                return _UNKNOWN if node.test else self._noted(node, schema)
            case CallNode():
                schemas = [self.schema_of(arg, scope) for arg in node.args]
                if node.function == "_[_]":
                    return self._noted(node, _entry(schemas[0]))
            case ListNode():
                for item in node.items:
                    self.schema_of(item, scope)
            case Loop():
                return self._loop(node, scope)
        return _UNKNOWN

    def _loop(self, loop: Loop, scope: Scope) -> Schema:
        ranged = self.schema_of(loop.range, scope)
        start = self.schema_of(loop.start, scope)
        if isinstance(loop.range, ListNode) and not loop.range.items:  # cel.bind
            return self.schema_of(loop.result, {**scope, loop.total: start})
        entries = [_UNKNOWN, _entry(ranged)] if len(loop.variables) > 1 else [_entry(ranged)]
        if len(loop.variables) == 1 and ranged.get("type") == "object":
            entries = [_UNKNOWN]  # a loop over a map gives its keys
        inside = {**scope, **dict(zip(loop.variables, entries, strict=False))}
        self.schema_of(loop.condition, inside)
        if _is_filter(loop):
            # The list of the filter's own making repeats the variable where it is declared.
            self.schema_of(loop.step.args[0], inside)
            return ranged
        self.schema_of(loop.step, inside)
        return _UNKNOWN

    def _noted(self, node: Node, schema: Schema) -> Schema:
        """Record the conversion of a part with a time format; return its schema."""
        form = _AS_TIME.get(schema.get("format", "")) if schema.get("type") == "string" else None
        span = self._span(node) if form else None
        if form is not None and span is not None:
            self._inserted[span] = form
        return schema

    def _span(self, node: Node) -> tuple[int, int] | None:
        """Return where a part begins and ends in the source; None if it is not in one piece."""
        end = self._end(node)
        start = _start(node)
        if start < 0 or end < 0 or not _is_balanced(cel.without_text(self._source)[start:end]):
            return None
        return start, end

    def _end(self, node: Node) -> int:
        if isinstance(node, Ident):
            return node.offset + len(node.name)
        if isinstance(node, Select):
            name = self._source.find(node.field, node.offset + 1)
            return name + len(node.field) if name >= 0 else -1
        if isinstance(node, CallNode):  # an index: its offset is that of the bracket
            text, depth = cel.without_text(self._source), 0
            for position in range(node.offset, len(text)):
                depth += (text[position] == "[") - (text[position] == "]")
                if not depth:
                    return position + 1
        return -1


def _start(node: Node) -> int:
    while not isinstance(node, Ident):
        if isinstance(node, Select):
            node = node.operand
        elif isinstance(node, CallNode) and node.function == "_[_]":
            node = node.args[0]
        else:
            return -1
    return node.offset


def _is_filter(loop: Loop) -> bool:
    """Return True for `filter`: each turn adds the variable itself, or nothing."""
    step = loop.step
    if not (isinstance(step, CallNode) and step.function == "_?_:_"):
        return False
    added = step.args[1]
    return (
        isinstance(added, CallNode)
        and added.function == "_+_"
        and isinstance(added.args[1], ListNode)
        and added.args[1].items[:1] != ()
        and isinstance(added.args[1].items[0], Ident)
        and added.args[1].items[0].name == loop.variables[0]
    )


def _is_balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            return False
    return depth == 0


def _field(schema: Schema, name: str) -> Schema:
    """Return the schema of a field; an empty one where none is declared."""
    properties = schema.get("properties")
    if not properties or schema.get("additionalProperties"):
        return _entry(schema) if not properties else _UNKNOWN
    declared: Mapping[str, Schema] = {escape(field): child for field, child in properties.items()}
    if name in declared:
        return declared[name]
    if schema.get("x-kubernetes-embedded-resource") or name in _ALWAYS:
        return _UNKNOWN
    raise CelError(f"undefined field '{name}'")


def _entry(schema: Schema) -> Schema:
    """Return the schema of a list's entries or a map's values; an empty one for others."""
    entry = schema.get("items") or schema.get("additionalProperties")
    return entry if isinstance(entry, Mapping) else _UNKNOWN
