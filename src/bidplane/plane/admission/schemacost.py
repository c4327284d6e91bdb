"""
The cost of a rule, estimated from the schema that declares its data.

kube-apiserver refuses a CustomResourceDefinition by this estimate, so ours is the same number: a
definition is accepted here if and only if it is accepted there. The factors are those of Kubernetes
1.37, found by comparison (`tests/security/test_cel_cost_upstream.py`).

Sizes are the largest that the schema allows: bytes of text, entries of a list or map. A number or
an object has size 0. An entry of a computed list has the size of `self`: upstream looks no
further. What nothing bounds has the size `UNKNOWN`, and costs too much wherever its size counts.

This estimate protects nobody at run time; the budget of an evaluation does (`core.cel.cost`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from bidplane.core.cel.ast import CallNode, Const, Ident, ListNode, Loop, Node, Select
from bidplane.plane.admission.identifiers import escape

UNKNOWN = 2.0**64
REQUEST_BYTES = 3 << 20  # the most that a request may hold

_CHAR = 0.1  # of a step, for each byte of text that is read
_REGEX_CHAR = 0.25  # for each character of a pattern
_LIST, _MAP = 10.0, 30.0  # for making one
_NAME_REGEX = 128  # characters of the longest pattern of a named format
_RUNE_BYTES = 4  # a character of `maxLength` may have so many bytes

TEXT, LIST, MAP, OBJECT, NUMBER, OPAQUE, ANY = (
    *("text", "list", "map", "object", "number", "opaque", "any"),
)
_TIMES = {"duration": (32, 3), "date": (12, 12), "date-time": (32, 21)}  # longest, shortest
_UNBOUNDED_TEXTS = frozenset(
    (
        *("string", "format", "charAt", "reverse", "getScheme", "getHostname", "getHost"),
        *("getPort", "getEscapedPath"),
    )
)
_READING = frozenset(
    ("quantity", "isQuantity", "semver", "isSemver", "ip", "isIP", "cidr", "isCIDR", "url")
)
_OPAQUE = frozenset(("quantity", "semver", "ip", "cidr", "url", "masked"))
_COPYING = frozenset(("lowerAscii", "upperAscii", "substring", "trim"))
_SUMMING = frozenset(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"))
_COMPARISONS = frozenset(("_<_", "_<=_", "_>_", "_>=_"))


class SizedValue(NamedTuple):
    size: float
    kind: str
    schema: Mapping[str, Any] | None = None  # that declares it
    has_path: bool = False  # from `self`, though it may lead to no schema


_SCALAR = SizedValue(1.0, NUMBER)
_ROOT_FIELDS = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}},
    },
}


class SchemaEstimate:
    """The estimate for rules at one place of a schema, whose values are `self` and `oldSelf`."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = _declared(schema)

    def of(self, tree: Node) -> float:
        return self._walk(tree, {})[0]

    def _walk(self, node: Node, local: Mapping[str, SizedValue]) -> tuple[float, SizedValue]:
        match node:
            case Const():
                is_text = node.text is not None or node.chars
                return 0.0, SizedValue(float(node.chars), TEXT) if is_text else _SCALAR
            case Ident():
                return 1.0, local.get(node.name, self._root)
            case Select():
                cost, value = self._walk(node.operand, local)
                if node.test:
                    return cost, _SCALAR  # has(…)
                return cost + 1, self._field(value, node.field)
            case ListNode():
                cost = sum(self._walk(item, local)[0] for item in node.items)
                if node.keyed:
                    return cost + _MAP, SizedValue(len(node.items) / 2, MAP)
                return cost + _LIST, SizedValue(float(len(node.items)), LIST)
            case Loop():
                return self._loop(node, local)
            case CallNode():
                return self._call(node, local)
        raise AssertionError(node)

    def _field(self, value: SizedValue, name: str) -> SizedValue:
        if not value.has_path:
            return self._root  # upstream takes the field for the variable
        fields = {} if value.schema is None else value.schema.get("properties") or {}
        for field, schema in fields.items():
            if escape(field) == name:
                return _declared(schema)
        values = None if value.schema is None else value.schema.get("additionalProperties")
        kind = _declared(values).kind if isinstance(values, Mapping) else ANY
        return SizedValue(1.0 if kind == NUMBER else UNKNOWN, kind, None, True)

    def _entry(self, value: SizedValue) -> SizedValue:
        """Return an entry of a list, or a value of a map."""
        if not value.has_path:
            return self._root._replace(kind=ANY)
        schema = value.schema or {}
        entry = schema.get("items") or schema.get("additionalProperties")
        return _declared(entry) if isinstance(entry, Mapping) else _nowhere()

    def _loop(self, loop: Loop, local: Mapping[str, SizedValue]) -> tuple[float, SizedValue]:
        cost, ranged = self._walk(loop.range, local)
        begun, start = self._walk(loop.start, local)
        entry = self._entry(ranged)
        key = SizedValue(0.0, TEXT, None, True) if ranged.kind == MAP else _SCALAR
        if len(loop.variables) == 1:
            entries = {loop.variables[0]: key if ranged.kind == MAP else entry}
        else:
            entries = dict(zip(loop.variables, (key, entry), strict=False))
        inside = {**local, **entries, loop.total: start}
        turn = self._walk(loop.condition, inside)[0] + self._walk(loop.step, inside)[0]
        closing, result = self._walk(loop.result, {**local, loop.total: start})
        total = _clamp(cost + begun + closing + _times(ranged.size, turn))
        if not ranged.size:
            return total, result  # cel.bind
        is_container = isinstance(loop.start, ListNode)
        return total, SizedValue(ranged.size, LIST) if is_container else _SCALAR

    def _call(self, call: CallNode, local: Mapping[str, SizedValue]) -> tuple[float, SizedValue]:
        parts = [self._walk(arg, local) for arg in call.args]
        values = [value for _, value in parts]
        if call.function == "_?_:_":
            larger = max(values[1:], key=lambda value: value.size)
            cost = parts[0][0] + max(parts[1][0], parts[2][0])
            return cost, SizedValue(larger.size, larger.kind)
        spent = sum(cost for cost, _ in parts)
        if call.function in ("_&&_", "_||_"):
            return spent, _SCALAR
        if call.function == "_[_]":
            return spent + 1, self._entry(values[0])
        cost, result = self._function(call.function, values)
        return _clamp(spent + cost), result

    def _function(self, name: str, values: list[SizedValue]) -> tuple[float, SizedValue]:
        """Return the cost of a call without its arguments, and its result."""
        first = values[0].size if values else 0.0
        second = values[1].size if len(values) > 1 else 0.0
        kinds = {value.kind for value in values}
        if name in _COPYING:
            return _chars(first), SizedValue(first, TEXT)
        if name in _SUMMING:
            return self._summing(values[0])
        if name in _READING:
            return _chars(first), SizedValue(UNKNOWN, OPAQUE) if name in _OPAQUE else _SCALAR
        if name in ("_==_", "_!=_") or (name in _COMPARISONS and TEXT in kinds):
            return (1.0 if OPAQUE in kinds else _chars(min(first, second))), _SCALAR
        match name:
            case "_+_" if NUMBER not in kinds and OPAQUE not in kinds:
                size = _clamp(first + second)
                if LIST in kinds:
                    return 1.0, SizedValue(size, LIST)
                return _chars(size), SizedValue(size, TEXT)
            case "@in" | "_in_" if len(values) == 2 and values[1].kind != MAP:
                return second, _SCALAR
            case "startsWith" | "endsWith":
                return _chars(second), _SCALAR
            case "contains":
                return _times(_chars(first), _chars(second)), _SCALAR
            case "matches" | "find" | "findAll":
                cost = _times(_chars(first + 1), _scaled(second, _REGEX_CHAR))
                kind = LIST if name == "findAll" else TEXT
                return cost, _SCALAR if name == "matches" else SizedValue(first, kind)
            case "split":
                return _chars(first, 2), SizedValue(first, LIST)
            case "replace" if len(values) >= 3:
                return _chars(first, 2), SizedValue(_replaced(*values[:3]), TEXT)
            case "join":
                size = _times(first, self._entry(values[0]).size)
                size = _clamp(size + _times(second, max(0.0, first - 1)))
                return _chars(size), SizedValue(size, TEXT)
            case "ip.isCanonical":
                return _chars(first, 2), _SCALAR
            case "validate" if len(values) == 2:
                return _scaled(_chars(second), _NAME_REGEX * _REGEX_CHAR), _SCALAR
            case "format" if len(values) == 2:
                return _chars(first), SizedValue(UNKNOWN, TEXT)
            case "bytes":
                return _chars(first), SizedValue(_clamp(first * _RUNE_BYTES), TEXT)
            case "strings.quote":
                return _chars(first), SizedValue(_clamp(first * 2 + 2), TEXT)
            case "sets.contains" | "sets.intersects":
                return _clamp(_times(first, second) + 1), _SCALAR
            case "sets.equivalent":
                return _clamp(2 * _times(first, second) + 1), _SCALAR
            case "dyn":
                return 1.0, values[0]
            case "value" | "orValue" | "optional.of" | "optional.ofNonZeroValue" | "_?._" | "_[?_]":
                return 1.0, SizedValue(UNKNOWN, ANY)
        return 1.0, SizedValue(UNKNOWN, TEXT) if name in _UNBOUNDED_TEXTS else _SCALAR

    def _summing(self, value: SizedValue) -> tuple[float, SizedValue]:
        if value.kind not in (LIST, ANY):
            return _chars(value.size), _SCALAR
        entry = self._entry(value)
        each = 1 + (_chars(entry.size) if entry.kind == TEXT else 0.0)
        return _times(value.size, each), SizedValue(entry.size, entry.kind)


def _clamp(amount: float) -> float:
    return min(amount, UNKNOWN)


def _times(left: float, right: float) -> float:
    return _clamp(left * right)


def _scaled(size: float, factor: float) -> float:
    return size if size >= UNKNOWN else float(math.ceil(size * factor))


def _chars(size: float, reads: int = 1) -> float:
    """Return the cost of reading text of `size` bytes, `reads` times."""
    return _scaled(size, reads * _CHAR)


def _replaced(text: SizedValue, old: SizedValue, new: SizedValue) -> float:
    """Return the largest size of `text` with every `old` replaced by `new`."""
    least = old.size if old.schema is None and not old.has_path else 0.0  # a literal is as it is
    if not least:
        return _clamp((text.size + 1) * new.size + text.size)
    if new.size <= least:
        return text.size
    return _times(math.ceil(text.size / least), new.size)


# What a schema declares.


def _nowhere() -> SizedValue:
    return SizedValue(UNKNOWN, ANY, None, True)


def with_root_fields(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a whole object with the fields that every object has."""
    return {**schema, "properties": {**(schema.get("properties") or {}), **_ROOT_FIELDS}}


def _declared(schema: Any) -> SizedValue:
    """Return a value of `schema`, of the largest size that it allows."""
    if not isinstance(schema, Mapping):
        return _nowhere()
    size, kind = _largest(schema)
    return SizedValue(size, kind, schema, True)


def _largest(schema: Mapping[str, Any]) -> tuple[float, str]:
    whole = REQUEST_BYTES - 2  # what is left beside its brackets or quotes
    longest = schema.get("maxLength")
    if schema.get("x-kubernetes-int-or-string"):
        return (float(whole if longest is None else longest * _RUNE_BYTES)), ANY
    match schema.get("type"):
        case "array":
            count = schema.get("maxItems")
            return float(
                whole // (least_bytes(schema.get("items")) + 1) if count is None else count
            ), LIST
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            count = schema.get("maxProperties")
            pair = least_bytes(schema["additionalProperties"]) + 6
            return float(whole // pair if count is None else count), MAP
        case "object":
            return 0.0, OBJECT
        case "string":
            return _longest_text(schema, whole)
        case "integer" | "number" | "boolean":
            return 0.0, NUMBER
    return UNKNOWN, ANY


def _longest_text(schema: Mapping[str, Any], whole: int) -> tuple[float, str]:
    longest, form = schema.get("maxLength"), schema.get("format")
    if form in _TIMES:
        return float(_TIMES[form][0]), NUMBER
    if longest is not None:
        return float(longest * (1 if form == "byte" else _RUNE_BYTES)), TEXT
    values = [value for value in schema.get("enum") or () if isinstance(value, str)]
    return float(max(map(len, values)) if values and form != "byte" else whole), TEXT


def least_bytes(schema: Any) -> int:
    """Return the fewest bytes that JSON needs for a value of `schema`."""
    if not isinstance(schema, Mapping) or schema.get("x-kubernetes-int-or-string"):
        return 1
    match schema.get("type"):
        case "object" if not isinstance(schema.get("additionalProperties"), Mapping):
            fields = schema.get("properties") or {}
            required = set(schema.get("required") or ()) & fields.keys()
            sent = [name for name in required if "default" not in fields[name]]
            return 2 + sum(len(name) + 4 + least_bytes(fields[name]) for name in sent)
        case "string":
            return _TIMES.get(schema.get("format", ""), (0, 2))[1]
        case "array" | "object":
            return 2
        case "boolean":
            return 4
    return 1
