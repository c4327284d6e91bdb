"""
From what a client sent to an object of its kind: one walk that copies, checks types, drops
what the kind does not have, and fills in the schema's defaults.

The copy matters: the caller keeps its own object, and the store owns what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bidplane.wire.patches.jsonpatch import copy
from bidplane.wire.schema import scalars
from bidplane.wire.schema.scalars import Mistyped
from bidplane.wire.schema.shapes import (
    ANY,
    ARRAY,
    BOOLEAN,
    BYTES,
    INT32,
    INT64,
    INT_OR_STRING,
    INTEGER,
    MICRO_TIME,
    NUMBER,
    OBJECT,
    QUANTITY,
    STRING,
    TIME,
    SchemaNode,
)
from bidplane.wire.status import Cause, too_large

DEPTH_LIMIT = 128
_TYPES: dict[str, tuple[type, ...]] = {
    STRING: (str,),
    INTEGER: (int,),
    NUMBER: (int, float),
    BOOLEAN: (bool,),
    INT_OR_STRING: (int, str),
    OBJECT: (dict,),
    ARRAY: (list,),
}
# Of built-in kinds: what is more than a JSON type.
_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    INT_OR_STRING: lambda value: scalars.int_or_string(value, INT32),
    QUANTITY: scalars.quantity_text,
    BYTES: scalars.base64_text,
    TIME: scalars.time,
    MICRO_TIME: scalars.micro_time,
}


DEFAULTS_LIMIT = 3 << 20  # bytes: a short list may stand for any number of them


class DecodeReport:
    """
    The findings of one walk: fields the kind does not have, values its schema does not allow.

    `wrong` is of custom kinds alone. A value of a built-in type that Go could not decode ends
    the walk with `Mistyped`.
    """

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.wrong: list[Cause] = []
        self._defaults = 0  # bytes

    def count_default(self, size: int) -> None:
        """Count the bytes of a default; raises 413 for more than any object may have."""
        self._defaults += size
        if self._defaults > DEFAULTS_LIMIT:
            raise too_large(DEFAULTS_LIMIT)


def clean(
    value: Any, shape: SchemaNode, report: DecodeReport, path: str = "", depth: int = 0
) -> Any:
    """
    Return a copy of `value` as `shape` has it. The caller decides what the report means.

    Raises `Mistyped` for what the Go type of a built-in kind cannot hold.
    """
    if depth > DEPTH_LIMIT:
        report.wrong.append(Cause(f"nested deeper than {DEPTH_LIMIT} levels", path))
        return None
    kind = shape.kind
    if kind == OBJECT:
        if type(value) is dict or isinstance(value, Mapping):
            return _object(value, shape, report, path, depth)
    elif kind == ARRAY:
        if isinstance(value, list | tuple):
            return _array(value, shape, report, path, depth)
    elif kind == ANY:
        return _any(value, shape, report, path, depth)
    elif shape.builtin:
        if value is not None:
            return _builtin(value, shape)
    elif isinstance(value, _TYPES[kind]) and (kind == BOOLEAN or not isinstance(value, bool)):
        if type(value) is not int or INT64[0] <= value <= INT64[1] or kind == NUMBER:
            return value
        value = float(value)  # what a JSON number past 64 bits becomes
    elif kind == INTEGER and isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None and (shape.nullable or shape.builtin):
        return None
    if shape.builtin:
        raise Mistyped(value=scalars.json_name(value), go_type=_go_type(shape))
    report.wrong.append(_wrong(value, kind, path))
    return value


_FREE = SchemaNode(ANY)


def _array(
    value: Sequence[Any], shape: SchemaNode, report: DecodeReport, path: str, depth: int
) -> list[Any]:
    items = shape.items or _FREE
    cleaned = [
        _zero(items)
        if item is None and items.builtin
        else clean(item, items, report, f"{path}[{at}]", depth + 1)
        for at, item in enumerate(value)
    ]
    if shape.builtin:
        # What tells entries apart is always there in Go, if only as an empty text.
        for key in shape.list_map_keys:
            if key in items.required and items.fields[key].kind == STRING:
                for item in cleaned:
                    item.setdefault(key, "")
    return cleaned


def _any(value: Any, shape: SchemaNode, report: DecodeReport, path: str, depth: int) -> Any:
    if shape.nested is not None:
        if isinstance(value, Mapping):
            return clean(value, shape.nested, report, path, depth + 1)
        if isinstance(value, list | tuple):
            return [
                _any(item, shape, report, f"{path}[{at}]", depth + 1)
                for at, item in enumerate(value)
            ]
    return copy(value)


def _builtin(value: Any, shape: SchemaNode) -> Any:
    """Return a scalar as Go would write it again; raises `Mistyped`."""
    kind = shape.kind
    if kind == INTEGER:
        return scalars.integer(value, shape.limits or INT64)
    decoder = _DECODERS.get(kind)
    if decoder is not None:
        return decoder(value)
    if isinstance(value, _TYPES[kind]) and (kind == BOOLEAN or not isinstance(value, bool)):
        return value
    raise Mistyped(value=scalars.json_name(value), go_type=_go_type(shape))


_ZEROS: Mapping[str, Any] = {STRING: "", BYTES: "", INTEGER: 0, BOOLEAN: False, QUANTITY: "0"}


def _zero(shape: SchemaNode) -> Any:
    """Return what Go makes of null in a list or a map: the zero value of the type."""
    if shape.kind == OBJECT and shape.values is None:
        return {}
    return _ZEROS.get(shape.kind)


_GO_TYPES = {
    STRING: "string",
    BOOLEAN: "bool",
    NUMBER: "float64",
    BYTES: "[]uint8",
    TIME: "string",
    MICRO_TIME: "string",
}


def _go_type(shape: SchemaNode) -> str:
    if shape.kind == ARRAY:
        return f"[]{_go_type(shape.items or _FREE)}"
    if shape.kind == OBJECT:
        if shape.values is not None:
            return f"map[string]{_go_type(shape.values)}"
        return ".".join(shape.definition.split(".")[-2:]) or "object"
    if shape.kind == INTEGER:
        return "int32" if shape.limits == INT32 else "int64"
    return _GO_TYPES.get(shape.kind, shape.kind)


def _object(
    value: Mapping[str, Any], shape: SchemaNode, report: DecodeReport, path: str, depth: int
) -> dict[str, Any]:
    fields, values = shape.fields, shape.values
    cleaned: dict[str, Any] = {}
    prefix = f"{path}." if path else ""
    name = ""
    try:
        for name, item in value.items():
            child = fields.get(name)
            if child is None:
                if values is not None and item is None and not values.nullable:
                    if values.builtin:
                        cleaned[name] = _zero(values)
                elif values is not None:
                    cleaned[name] = clean(item, values, report, f"{prefix}{name}", depth + 1)
                elif shape.preserve:
                    cleaned[name] = copy(item)
                else:
                    report.unknown.append(f"{prefix}{name}")
            elif item is None and not child.nullable and child.kind != ANY:
                pass  # to Go null is "not set"; to a structural schema too, or a reason to default
            elif child.builtin and child.values is not None and item == {}:
                pass  # nor does Go write a map that is empty (an empty object is another matter)
            elif type(item) is str and child.kind == STRING:
                cleaned[name] = item
            else:
                cleaned[name] = clean(item, child, report, f"{prefix}{name}", depth + 1)
    except Mistyped as error:
        if name in fields and shape.builtin:
            error.enter(shape.definition, name)
        raise
    for name, child, size in shape.defaulted:
        if name not in cleaned:
            report.count_default(size)
            cleaned[name] = clean(child.default, child, report, f"{prefix}{name}", depth + 1)
    return cleaned


def _wrong(value: Any, expected: str, path: str) -> Cause:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    name = names.get(type(value), "number" if isinstance(value, float) else "integer")
    expected = "integer,string" if expected == INT_OR_STRING else expected
    message = f'Invalid value: "{name}": {path} in body must be of type {expected}: "{name}"'
    return Cause(message, path, "FieldValueTypeInvalid")
