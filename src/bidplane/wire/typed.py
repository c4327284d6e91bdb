"""
Values compared, merged and cut by their shape: the algebra under server-side apply.

Everything here follows `fields`: what is atomic there is one leaf here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.wire.fields import (
    SELF,
    UNTYPED,
    BadFields,
    Fields,
    added,
    child,
    element,
    entries,
    is_atomic,
    is_member,
    readable,
)
from bidplane.wire.patch import copy
from bidplane.wire.shapes import ANY, ARRAY, BOOLEAN, INTEGER, NUMBER, OBJECT, STRING, Shape

_ABSENT: Any = object()


class Comparison(msgspec.Struct):
    """What changed from one value to another."""

    added: Fields = {}
    modified: Fields = {}
    removed: Fields = {}


def compare(old: Any, new: Any, shape: Shape) -> Comparison:
    """Of two objects or two associative lists."""
    found = Comparison({}, {}, {})
    if isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            one, other = old.get(name, _ABSENT), new.get(name, _ABSENT)
            _pair(f"f:{name}", one, other, child(shape, name), found)
        return found
    before, after = entries(old, shape), entries(new, shape)
    kind = shape.items or UNTYPED
    for at in dict.fromkeys((*before, *after)):
        ones, others = before.get(at), after.get(at)
        if (ones and len(ones) > 1) or (others and len(others) > 1):
            # The same key twice can only be compared as a whole.
            if ones is None or others is None:
                (found.added if ones is None else found.removed)[at] = {}
            elif ones != others:
                found.modified[at] = {}
            continue
        _pair(at, ones[0] if ones else _ABSENT, others[0] if others else _ABSENT, kind, found)
    return found


def _pair(at: str, old: Any, new: Any, shape: Shape, found: Comparison) -> None:
    if old is _ABSENT:
        found.added[at] = _whole(new, shape)
    elif new is _ABSENT:
        found.removed[at] = _whole(old, shape)
    elif old == new and type(old) is type(new):
        return
    elif (
        is_atomic(old, shape)
        or is_atomic(new, shape)
        or not (old or new)
        or isinstance(old, Mapping) != isinstance(new, Mapping)
    ):
        found.modified[at] = {}
    else:
        below = compare(old, new, shape)
        for mine, theirs in (
            (found.added, below.added),
            (found.modified, below.modified),
            (found.removed, below.removed),
        ):
            if theirs:
                mine[at] = theirs


def _whole(value: Any, shape: Shape) -> Fields:
    if is_atomic(value, shape) or not value:
        return {}
    return {SELF: {}, **added(value, shape)}


def merge(live: Any, config: Any, shape: Shape) -> Any:
    """`live` with what `config` says; lists by key, in config's order as far as it has one."""
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


def _weave(live: list[Any], config: list[Any], shape: Shape) -> list[Any]:
    """
    Entries that config does not name keep their place among those it does.

    We walk down the live list. What only it has is taken at once; what is named is waited for
    while it is the next of the shared ones, and otherwise comes when config's order says so.
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


def remove(value: Any, fields: Fields, shape: Shape) -> Any:
    """`value` without the members of `fields`; None when nothing is left of it."""
    if not value or is_atomic(value, shape):
        return None if is_atomic(value, shape) else value
    if isinstance(value, Mapping):
        left = {}
        for name, item in value.items():
            kept = _kept(item, fields.get(f"f:{name}"), child(shape, name))
            if kept is not None or item is None:
                left[name] = kept
        return left or None
    kind = shape.items or UNTYPED
    items = [_kept(item, fields.get(element(item, shape)), kind) for item in value]
    return [item for item in items if item is not None] or None


def _kept(item: Any, node: Fields | None, shape: Shape) -> Any:
    if node is None:
        return item
    return None if is_member(node) else remove(item, node, shape)


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    STRING: str,
    INTEGER: int,
    NUMBER: (int, float),
    BOOLEAN: bool,
}


def check(value: Any, shape: Shape, path: str = "") -> None:
    """Raise `BadFields` unless `value` can be applied: typed, declared, its entries told apart."""
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
        wanted = _TYPES.get(shape.kind)
        if isinstance(value, Mapping | list):
            raise BadFields(f"{path}: expected scalar, got {_go(value)}")
        if wanted and (
            not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool)
        ):
            name = {STRING: "string", BOOLEAN: "boolean"}.get(shape.kind, "numeric (int or float)")
            raise BadFields(f"{path}: expected {name}, got {_go(value)}")


def _go(value: Any) -> str:
    shown = f'"{value}"' if isinstance(value, str) else value
    return f"&value.valueUnstructured{{Value:{shown}}}"


def _check_items(value: list[Any], shape: Shape, path: str) -> None:
    seen: set[str] = set()
    for at, item in enumerate(value):
        place = f"{path}[{at}]"
        if shape.list_type in ("map", "set"):
            try:
                key = element(item, shape)
            except BadFields as error:
                raise BadFields(f"{path}: element {at}: {error}") from None
            place = path + readable(key)
            if key in seen:
                raise BadFields(f"{path}: duplicate entries for key {readable(key)}")
            seen.add(key)
        check(item, shape.items or UNTYPED, place)
