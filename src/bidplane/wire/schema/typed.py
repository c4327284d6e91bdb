"""
Values compared, merged and cut by their shape: the algebra under server-side apply.

Everything here follows `fields`: what is atomic there is one leaf here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.wire.patches.fields import (
    SELF,
    UNTYPED,
    BadFields,
    Fields,
    added,
    child,
    element,
    entries,
    format_element,
    is_atomic,
    is_member,
)
from bidplane.wire.patches.jsonpatch import copy
from bidplane.wire.schema.shapes import (
    ANY,
    ARRAY,
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    SchemaNode,
)

_ABSENT: Any = object()


class FieldComparison(msgspec.Struct):
    """The fields that were added, modified and removed between two values."""

    added: Fields = {}
    modified: Fields = {}
    removed: Fields = {}


def compare(old: Any, new: Any, shape: SchemaNode) -> FieldComparison:
    """Return the changes between two objects, or between two associative lists."""
    comparison = FieldComparison({}, {}, {})
    if isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            old_value, new_value = old.get(name, _ABSENT), new.get(name, _ABSENT)
            _pair(f"f:{name}", old_value, new_value, child(shape, name), comparison)
        return comparison
    before, after = entries(old, shape), entries(new, shape)
    kind = shape.items or UNTYPED
    for at in dict.fromkeys((*before, *after)):
        old_items, new_items = before.get(at), after.get(at)
        if (old_items and len(old_items) > 1) or (new_items and len(new_items) > 1):
            # The same key twice can only be compared as a whole.
            if old_items is None or new_items is None:
                (comparison.added if old_items is None else comparison.removed)[at] = {}
            elif old_items != new_items:
                comparison.modified[at] = {}
            continue
        _pair(
            at,
            old_items[0] if old_items else _ABSENT,
            new_items[0] if new_items else _ABSENT,
            kind,
            comparison,
        )
    return comparison


def _pair(at: str, old: Any, new: Any, shape: SchemaNode, comparison: FieldComparison) -> None:
    if old is _ABSENT:
        comparison.added[at] = _whole(new, shape)
    elif new is _ABSENT:
        comparison.removed[at] = _whole(old, shape)
    elif old == new and type(old) is type(new):
        return
    elif (
        is_atomic(old, shape)
        or is_atomic(new, shape)
        or not (old or new)
        or isinstance(old, Mapping) != isinstance(new, Mapping)
    ):
        comparison.modified[at] = {}
    else:
        below = compare(old, new, shape)
        for mine, theirs in (
            (comparison.added, below.added),
            (comparison.modified, below.modified),
            (comparison.removed, below.removed),
        ):
            if theirs:
                mine[at] = theirs


def _whole(value: Any, shape: SchemaNode) -> Fields:
    if is_atomic(value, shape) or not value:
        return {}
    return {SELF: {}, **added(value, shape)}


def merge(live: Any, config: Any, shape: SchemaNode) -> Any:
    """Return `live` merged with `config`; lists by key, in the order of config."""
    if config is None:
        return copy(live)
    if live is None or is_atomic(live, shape) or is_atomic(config, shape):
        return copy(config)
    if isinstance(config, Mapping):
        if not isinstance(live, Mapping):
            return copy(config)
        merged = dict(live)
        for name, item in config.items():
            merged[name] = merge(live.get(name), item, child(shape, name))
        return merged
    return _weave(live, config, shape) if isinstance(live, list) else copy(config)


def _weave(live: list[Any], config: list[Any], shape: SchemaNode) -> list[Any]:
    """
    Return the merged list: entries that config does not name keep their place among the others.

    We walk down the live list. An entry that only the live list has is taken at once. At the next
    shared entry, config's entries are taken up to it; other shared entries follow config's order.
    """
    mine = {element(item, shape): item for item in live}
    theirs = {element(item, shape): item for item in config}
    waiting = list(theirs)
    shared = [at for at in waiting if at in mine]
    kind, woven, done = shape.items or UNTYPED, [], set()

    def take() -> None:
        at = waiting.pop(0)
        done.add(at)
        if shared and shared[0] == at:
            shared.pop(0)
        woven.append(merge(mine.get(at), theirs[at], kind))

    for item in live:
        at = element(item, shape)
        if at not in theirs:
            woven.append(item)
            continue
        if shared and shared[0] == at:
            while at not in done:
                take()
    while waiting:
        take()
    return woven


def remove(value: Any, fields: Fields, shape: SchemaNode) -> Any:
    """Return `value` without the members of `fields`; None if nothing remains."""
    if not value or is_atomic(value, shape):
        return None if is_atomic(value, shape) else value
    if isinstance(value, Mapping):
        remaining = {}
        for name, item in value.items():
            item_rest = _without_node(item, fields.get(f"f:{name}"), child(shape, name))
            if item_rest is not None or item is None:
                remaining[name] = item_rest
        return remaining or None
    kind = shape.items or UNTYPED
    items = [_without_node(item, fields.get(element(item, shape)), kind) for item in value]
    return [item for item in items if item is not None] or None


def _without_node(item: Any, node: Fields | None, shape: SchemaNode) -> Any:
    if node is None:
        return item
    return None if is_member(node) else remove(item, node, shape)


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    STRING: str,
    INTEGER: int,
    NUMBER: (int, float),
    BOOLEAN: bool,
}


def check(value: Any, shape: SchemaNode, path: str = "") -> None:
    """Raise `BadFields` unless `value` can be applied: typed, declared, with unique entries."""
    if value is None or shape.kind == ANY:
        return
    if shape.kind == OBJECT:
        if not isinstance(value, Mapping):
            raise BadFields(f"{path}: expected map, got {_go(value)}")
        for name, item in value.items():
            if name not in shape.fields and shape.values is None and not shape.preserve:
                raise BadFields(f"{path}.{name}: field not declared in schema")
            check(item, child(shape, name), f"{path}.{name}")
    elif shape.kind == ARRAY:
        if not isinstance(value, list):
            raise BadFields(f"{path}: expected list, got {_go(value)}")
        _check_items(value, shape, path)
    else:
        expected = _TYPES.get(shape.kind)
        if isinstance(value, Mapping | list):
            raise BadFields(f"{path}: expected scalar, got {_go(value)}")
        if expected and (
            not isinstance(value, expected) or isinstance(value, bool) != (expected is bool)
        ):
            name = {STRING: "string", BOOLEAN: "boolean"}.get(shape.kind, "numeric (int or float)")
            raise BadFields(f"{path}: expected {name}, got {_go(value)}")


def _go(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else value
    return f"&value.valueUnstructured{{Value:{text}}}"


def _check_items(value: list[Any], shape: SchemaNode, path: str) -> None:
    earlier_keys: set[str] = set()
    for at, item in enumerate(value):
        place = f"{path}[{at}]"
        if shape.list_type in ("map", "set"):
            try:
                key = element(item, shape)
            except BadFields as error:
                raise BadFields(f"{path}: element {at}: {error}") from None
            place = path + format_element(key)
            if key in earlier_keys:
                raise BadFields(f"{path}: duplicate entries for key {format_element(key)}")
            earlier_keys.add(key)
        check(item, shape.items or UNTYPED, place)
