"""
Sets of fields, in the form of managedFields (FieldsV1).

A set is a tree of path elements: `f:NAME` a field, `k:{…}` an entry of a list by its keys,
`v:…` an entry of a set by its value. An element is a member if it has nothing below it, or
holds a ".". We work on that form itself, so nothing is translated when an object is written.

Which elements a value has depends on its shape: a list without a type, and a map that says so,
are owned whole ("atomic").
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.wire.schema.shapes import ARRAY, INTEGER, SchemaNode

Fields = dict[str, Any]
SELF = "."
UNTYPED = SchemaNode()


class BadFields(ValueError):
    """An invalid set of fields, or a value that none can name."""


_SHARED = 4096  # sets: objects of a kind, written by the same parts, have the same few


def intern(fields: Fields) -> Fields:
    """
    Return an equal set that is shared between objects.

    A decoded set is twice as large as the rest of a pod, and a thousand agents' pods differ in
    their values, not in the managers of their fields.
    """
    return _interned(msgspec.json.encode(fields))


@functools.lru_cache(_SHARED)
def _interned(encoded: bytes) -> Fields:
    fields: Fields = msgspec.json.decode(encoded)
    return fields


# Shapes.


def child(shape: SchemaNode, name: str) -> SchemaNode:
    return shape.fields.get(name) or shape.values or UNTYPED


def is_atomic(value: Any, shape: SchemaNode) -> bool:
    """Return true if `value` has one owner as a whole: scalars, and shapes declared atomic."""
    if isinstance(value, Mapping):
        return shape.map_type == "atomic"
    if isinstance(value, list):
        return shape.kind != ARRAY or shape.list_type not in ("map", "set")
    return True


def element(item: Any, shape: SchemaNode) -> str:
    """The path element that names `item` in a list of `shape`."""
    if shape.list_type == "set":
        return "v:" + _compact(item)
    if not isinstance(item, Mapping):
        raise BadFields("associative list with keys may not have non-map elements")
    keys = {}
    for key in shape.list_map_keys:
        key_value = item.get(key)
        if key_value is None and shape.items is not None:
            key_value = _default(shape.items.fields.get(key))
        if key_value is None:
            raise BadFields(
                f"associative list with keys has an element that omits key field {json.dumps(key)}"
                " (and doesn't have default value)"
            )
        keys[key] = key_value
    if len(keys) == 1 and type(key_value) is str:
        return _by_one_name(key, key_value)
    return "k:" + _compact(dict(sorted(keys.items())))


@functools.lru_cache(_SHARED)  # of containers, types of conditions
def _by_one_name(key: str, value: str) -> str:
    return "k:" + _compact({key: value})


def _default(shape: SchemaNode | None) -> Any:
    if shape is None:
        return None
    if shape.default is not None or not shape.builtin:
        return shape.default
    return 0 if shape.kind == INTEGER else ""  # to Go an absent field is a zero


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def entries(value: Sequence[Any], shape: SchemaNode) -> dict[str, list[Any]]:
    """The items of an associative list by their element; an element may occur twice."""
    items_by_element: dict[str, list[Any]] = {}
    for item in value:
        items_by_element.setdefault(element(item, shape), []).append(item)
    return items_by_element


# Sets of values.


def applied(value: Any, shape: SchemaNode) -> Fields:
    """Return the fields of an applied configuration: its leaves, and the list entries it names."""
    claimed: Fields = {}
    if isinstance(value, Mapping):
        for name, item in value.items():
            kind = child(shape, name)
            if is_atomic(item, kind) or (isinstance(item, Mapping) and not item):
                claimed[f"f:{name}"] = {}
                continue
            below = applied(item, kind)
            if name not in shape.fields:
                below[SELF] = {}  # a key of a map is something to own, a field of a struct is not
            if below:
                claimed[f"f:{name}"] = _leaf(below)
    elif isinstance(value, list):
        for at, items in entries(value, shape).items():
            below = {} if len(items) > 1 else applied_item(items[0], shape)
            claimed[at] = _leaf({**below, SELF: {}})
    return claimed


def applied_item(item: Any, shape: SchemaNode) -> Fields:
    kind = shape.items or UNTYPED
    return {} if is_atomic(item, kind) else applied(item, kind)


def added(value: Any, shape: SchemaNode) -> Fields:
    """Return all fields of a new `value`, including the objects and list entries themselves."""
    new_fields: Fields = {}
    if isinstance(value, Mapping):
        for name, item in value.items():
            kind = child(shape, name)
            if is_atomic(item, kind) or not item:
                new_fields[f"f:{name}"] = {}
            else:
                new_fields[f"f:{name}"] = {SELF: {}, **added(item, kind)}
    elif isinstance(value, list):
        kind = shape.items or UNTYPED
        for at, items in entries(value, shape).items():
            if len(items) > 1 or is_atomic(items[0], kind) or not items[0]:
                new_fields[at] = {}
            else:
                new_fields[at] = {SELF: {}, **added(items[0], kind)}
    return new_fields


# Arithmetic. No argument is changed; results may share their parts.


def is_member(node: Fields) -> bool:
    return not node or SELF in node


def _leaf(node: Fields) -> Fields:
    return {} if node.keys() == {SELF} else node


def union(first: Fields, second: Fields) -> Fields:
    """Return the members of both sets."""
    if not first or not second:
        return first or second
    combined = dict(first)
    for at, node in second.items():
        mine = combined.get(at)
        if mine is None:
            combined[at] = node
        elif mine != node:
            both = union(mine or {SELF: {}}, node)
            combined[at] = {SELF: {}, **both} if is_member(node) else both
    return combined


def difference(first: Fields, second: Fields) -> Fields:
    """Return the members of `first` that are not in `second`; the "." of either is ignored."""
    if not second:
        return {at: node for at, node in first.items() if at != SELF} if SELF in first else first
    remaining: Fields = {}
    for at, node in first.items():
        if at == SELF:
            continue
        theirs = second.get(at)
        if theirs is None:
            remaining[at] = node
            continue
        below = difference(node, theirs) if node else {}
        stays = is_member(node) and not is_member(theirs)
        if stays:
            remaining[at] = _leaf({SELF: {}, **below})
        elif below:
            remaining[at] = below
    return remaining


def intersection(first: Fields, second: Fields) -> Fields:
    """Return the members that both sets have."""
    common: Fields = {}
    for at, node in first.items():
        theirs = second.get(at)
        if at == SELF or theirs is None:
            continue
        below = intersection(node, theirs)
        if is_member(node) and is_member(theirs):
            common[at] = _leaf({SELF: {}, **below})
        elif below:
            common[at] = below
    return common


def without(fields: Fields, path: Sequence[str]) -> Fields:
    """Return `fields` without `path` and all below it."""
    at, *rest = path
    node = fields.get(at)
    if node is None:
        return fields
    remaining = {key: value for key, value in fields.items() if key != at}
    if rest and node:
        below = without(node, rest)
        if below:
            remaining[at] = below
    elif rest:
        remaining[at] = node
    return remaining


def named(fields: Fields, shape: SchemaNode) -> Fields:
    """Return `fields` with every struct field on the way to a member added as a member."""
    expanded: Fields = {}
    for at, node in fields.items():
        if at == SELF or not node:
            expanded[at] = node
            continue
        if at.startswith("f:"):
            name = at[2:]
            below = named(node, child(shape, name))
            expanded[at] = {SELF: {}, **below} if name in shape.fields else below
        else:
            expanded[at] = named(node, shape.items or UNTYPED)
    return expanded


def members(fields: Fields, prefix: str = "") -> Iterator[str]:
    """Yield the members as readable paths: `.spec.containers[name="main"].image`, in order."""
    for at, node in sorted(fields.items()):
        if at == SELF:
            continue
        path = prefix + format_element(at)
        if is_member(node):
            yield path
        yield from members(node, path)


def format_element(at: str) -> str:
    """Return a path element as people read it: `.image`, `[name="main"]`."""
    kind, _, text = at.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        keys = ",".join(f"{key}={_compact(value)}" for key, value in json.loads(text).items())
        return f"[{keys}]"
    return f"[={text}]" if kind == "v" else f"[{text}]"


def parsed(sent: Any, depth: int = 0) -> Fields:
    """Return a client's set in canonical form; raises `BadFields`."""
    if not isinstance(sent, Mapping) or depth > 128:
        raise BadFields("fieldsV1 must be objects all the way down")
    fields: Fields = {}
    for at, node in sent.items():
        kind, colon, text = at.partition(":")
        below = parsed(node, depth + 1)
        if at == SELF:
            fields[SELF] = {}
        elif not colon or kind not in "fkvi" or not kind:
            raise BadFields(f"{at!r} is not a path element (f:, k:, v: or i:)")
        elif kind in "kv":
            try:
                value = json.loads(text)
            except ValueError:
                raise BadFields(f"{at!r} does not hold JSON") from None
            if kind == "k" and not isinstance(value, dict):
                raise BadFields(f"{at!r} does not hold keys")
            plain = dict(sorted(value.items())) if kind == "k" else value
            fields[f"{kind}:{_compact(plain)}"] = below
        else:
            fields[at] = below
    return {at: _leaf(node) for at, node in fields.items()}
