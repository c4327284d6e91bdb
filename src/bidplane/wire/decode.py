"""
From what a client sent to an object of its kind: one walk that copies, checks types, drops
what the kind does not have, and fills in the schema's defaults.

The copy matters: the caller keeps its own object, and the store owns what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.wire import quantity
from bidplane.wire.patch import copy
from bidplane.wire.shapes import (
    ANY,
    ARRAY,
    BOOLEAN,
    INT_OR_STRING,
    INTEGER,
    NUMBER,
    OBJECT,
    QUANTITY,
    STRING,
    Shape,
)
from bidplane.wire.status import Cause

DEPTH_LIMIT = 128
_TYPES: dict[str, tuple[type, ...]] = {
    STRING: (str,),
    INTEGER: (int,),
    NUMBER: (int, float),
    BOOLEAN: (bool,),
    INT_OR_STRING: (int, str),
    QUANTITY: (int, float, str),
    OBJECT: (dict,),
    ARRAY: (list,),
}


class Report:
    """What a walk found: fields the kind does not have, and values of the wrong type."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.wrong: list[Cause] = []


def clean(value: Any, shape: Shape, report: Report, path: str = "", depth: int = 0) -> Any:
    """A copy of `value` as `shape` has it. The caller decides what the report means."""
    if depth > DEPTH_LIMIT:
        report.wrong.append(Cause(f"nested deeper than {DEPTH_LIMIT} levels", path))
        return None
    kind = shape.kind
    if kind == OBJECT:
        if type(value) is dict or isinstance(value, Mapping):
            return _object(value, shape, report, path, depth)
    elif kind == ARRAY:
        if isinstance(value, list | tuple):
            items = shape.items or _FREE
            return [
                clean(item, items, report, f"{path}[{at}]", depth + 1)
                for at, item in enumerate(value)
            ]
    elif kind == ANY:
        return copy(value)
    elif isinstance(value, _TYPES[kind]) and (kind == BOOLEAN or not isinstance(value, bool)):
        return _quantity(value, report, path) if kind == QUANTITY else value
    elif kind == INTEGER and isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None and (shape.nullable or shape.builtin):
        return None
    report.wrong.append(_wrong(value, kind, path))
    return value


_FREE = Shape(ANY)


def _object(
    value: Mapping[str, Any], shape: Shape, report: Report, path: str, depth: int
) -> dict[str, Any]:
    fields, values = shape.fields, shape.values
    cleaned: dict[str, Any] = {}
    prefix = f"{path}." if path else ""
    for name, item in value.items():
        child = fields.get(name)
        if child is None:
            if values is not None:
                cleaned[name] = clean(item, values, report, f"{prefix}{name}", depth + 1)
            elif shape.preserve:
                cleaned[name] = copy(item)
            else:
                report.unknown.append(f"{prefix}{name}")
        elif item is None and not child.nullable and (child.builtin or child.default is not None):
            pass  # to Go null is "not set"; to a structural schema, a reason to default
        elif child.builtin and child.values is not None and item == {}:
            pass  # nor does Go write a map that is empty (an empty object is another matter)
        elif type(item) is str and child.kind == STRING:
            cleaned[name] = item
        else:
            cleaned[name] = clean(item, child, report, f"{prefix}{name}", depth + 1)
    for name, child in shape.defaulted:
        if name not in cleaned:
            cleaned[name] = clean(child.default, child, report, f"{prefix}{name}", depth + 1)
    return cleaned


def _quantity(value: Any, report: Report, path: str) -> Any:
    try:
        return quantity.canonical(value)
    except ValueError as error:
        report.wrong.append(Cause(str(error), path))
        return value


def _wrong(value: Any, wanted: str, path: str) -> Cause:
    found = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    name = found.get(type(value), "number" if isinstance(value, float) else "integer")
    message = f'Invalid value: "{name}": {path} in body must be of type {wanted}: "{name}"'
    return Cause(message, path, "FieldValueTypeInvalid")
