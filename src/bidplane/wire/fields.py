"""
Sets of fields, as managedFields writes them down (FieldsV1).

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

from bidplane.wire.shapes import ARRAY, INTEGER, Shape

Fields = dict[str, Any]
SELF = "."
UNTYPED = Shape()


class BadFields(ValueError):
    """Not a set of fields, or a value that cannot be named by one."""


_SHARED = 4096  # sets: objects of a kind, written by the same parts, have the same few


def shared(found: Fields) -> Fields:
    """
    The same set, as one that others hold, too.

    Decoded it is twice as large as the rest of a pod, and a thousand agents' pods differ in
    their values, not in who wrote which field.
    """
    return _held(msgspec.json.encode(found))


@functools.lru_cache(_SHARED)
def _held(encoded: bytes) -> Fields:
    found: Fields = msgspec.json.decode(encoded)
    return found


# Shapes.


def child(shape: Shape, name: str) -> Shape:
    return shape.fields.get(name) or shape.values or UNTYPED


def is_atomic(value: Any, shape: Shape) -> bool:
    """Whether `value` is owned whole: plain values are, and what its shape declares so."""
    if isinstance(value, Mapping):
        return shape.map_type == "atomic"
    if isinstance(value, list):
        return shape.kind != ARRAY or shape.list_type not in ("map", "set")
    return True


def element(item: Any, shape: Shape) -> str:
    """The path element that names `item` in a list of `shape`."""
    if shape.list_type == "set":
        return "v:" + _compact(item)
    if not isinstance(item, Mapping):
        raise BadFields("associative list with keys may not have non-map elements")
    keys = {}
    for key in shape.list_map_keys:
        found = item.get(key)
        if found is None and shape.items is not None:
            found = _default(shape.items.fields.get(key))
        if found is None:
            raise BadFields(
                f"associative list with keys has an element that omits key field {json.dumps(key)}"
                " (and doesn't have default value)"
            )
        keys[key] = found
    if len(keys) == 1 and type(found) is str:
        return _by_one_name(key, found)
    return "k:" + _compact(dict(sorted(keys.items())))


@functools.lru_cache(_SHARED)  # of containers, types of conditions
def _by_one_name(key: str, value: str) -> str:
    return "k:" + _compact({key: value})


def _default(shape: Shape | None) -> Any:
    if shape is None:
        return None
    if shape.default is not None or not shape.builtin:
        return shape.default
    return 0 if shape.kind == INTEGER else ""  # to Go an absent field is a zero


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def entries(value: Sequence[Any], shape: Shape) -> dict[str, list[Any]]:
    """The items of an associative list by their element; an element may occur twice."""
    found: dict[str, list[Any]] = {}
    for item in value:
        found.setdefault(element(item, shape), []).append(item)
    return found


# Sets of values.


def applied(value: Any, shape: Shape) -> Fields:
    """What an applied configuration claims: its leaves, and the entries it names."""
    found: Fields = {}
    if isinstance(value, Mapping):
        for name, item in value.items():
            kind = child(shape, name)
            if is_atomic(item, kind) or (isinstance(item, Mapping) and not item):
                found[f"f:{name}"] = {}
                continue
            below = applied(item, kind)
            if name not in shape.fields:
                below[SELF] = {}  # a key of a map is something to own, a field of a struct is not
            if below:
                found[f"f:{name}"] = _leaf(below)
    elif isinstance(value, list):
        for at, items in entries(value, shape).items():
            below = {} if len(items) > 1 else applied_item(items[0], shape)
            found[at] = _leaf({**below, SELF: {}})
    return found


def applied_item(item: Any, shape: Shape) -> Fields:
    kind = shape.items or UNTYPED
    return {} if is_atomic(item, kind) else applied(item, kind)


def added(value: Any, shape: Shape) -> Fields:
    """Everything that comes into being with `value`, the objects and entries themselves too."""
    found: Fields = {}
    if isinstance(value, Mapping):
        for name, item in value.items():
            kind = child(shape, name)
            if is_atomic(item, kind) or not item:
                found[f"f:{name}"] = {}
            else:
                found[f"f:{name}"] = {SELF: {}, **added(item, kind)}
    elif isinstance(value, list):
        kind = shape.items or UNTYPED
        for at, items in entries(value, shape).items():
            if len(items) > 1 or is_atomic(items[0], kind) or not items[0]:
                found[at] = {}
            else:
                found[at] = {SELF: {}, **added(items[0], kind)}
    return found


# Arithmetic. No argument is changed; results may share their parts.


def is_member(node: Fields) -> bool:
    return not node or SELF in node


def _leaf(node: Fields) -> Fields:
    return {} if node.keys() == {SELF} else node


def union(one: Fields, other: Fields) -> Fields:
    if not one or not other:
        return one or other
    found = dict(one)
    for at, node in other.items():
        mine = found.get(at)
        if mine is None:
            found[at] = node
        elif mine != node:
            both = union(mine or {SELF: {}}, node)
            found[at] = {SELF: {}, **both} if is_member(node) else both
    return found


def difference(one: Fields, other: Fields) -> Fields:
    """The members of `one` that are not members of `other`; neither's own "." counts."""
    if not other:
        return {at: node for at, node in one.items() if at != SELF} if SELF in one else one
    found: Fields = {}
    for at, node in one.items():
        if at == SELF:
            continue
        theirs = other.get(at)
        if theirs is None:
            found[at] = node
            continue
        below = difference(node, theirs) if node else {}
        stays = is_member(node) and not is_member(theirs)
        if stays:
            found[at] = _leaf({SELF: {}, **below})
        elif below:
            found[at] = below
    return found


def intersection(one: Fields, other: Fields) -> Fields:
    found: Fields = {}
    for at, node in one.items():
        theirs = other.get(at)
        if at == SELF or theirs is None:
            continue
        below = intersection(node, theirs)
        if is_member(node) and is_member(theirs):
            found[at] = _leaf({SELF: {}, **below})
        elif below:
            found[at] = below
    return found


def without(fields: Fields, path: Sequence[str]) -> Fields:
    """`fields` without `path` and all below it."""
    at, *rest = path
    node = fields.get(at)
    if node is None:
        return fields
    found = {key: value for key, value in fields.items() if key != at}
    if rest and node:
        left = without(node, rest)
        if left:
            found[at] = left
    elif rest:
        found[at] = node
    return found


def named(fields: Fields, shape: Shape) -> Fields:
    """`fields`, in which every field of a struct on the way to a member is a member too."""
    found: Fields = {}
    for at, node in fields.items():
        if at == SELF or not node:
            found[at] = node
            continue
        if at.startswith("f:"):
            name = at[2:]
            below = named(node, child(shape, name))
            found[at] = {SELF: {}, **below} if name in shape.fields else below
        else:
            found[at] = named(node, shape.items or UNTYPED)
    return found


def members(fields: Fields, prefix: str = "") -> Iterator[str]:
    """The members as people read them: `.spec.containers[name="main"].image`, in order."""
    for at, node in sorted(fields.items()):
        if at == SELF:
            continue
        path = prefix + readable(at)
        if is_member(node):
            yield path
        yield from members(node, path)


def readable(at: str) -> str:
    kind, _, text = at.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        keys = ",".join(f"{key}={_compact(value)}" for key, value in json.loads(text).items())
        return f"[{keys}]"
    return f"[={text}]" if kind == "v" else f"[{text}]"


def parsed(sent: Any, depth: int = 0) -> Fields:
    """A set that a client wrote, in the spelling we compare by; raises `BadFields`."""
    if not isinstance(sent, Mapping) or depth > 128:
        raise BadFields("fieldsV1 must be objects all the way down")
    found: Fields = {}
    for at, node in sent.items():
        kind, colon, text = at.partition(":")
        below = parsed(node, depth + 1)
        if at == SELF:
            found[SELF] = {}
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
            found[f"{kind}:{_compact(plain)}"] = below
        else:
            found[at] = below
    return {at: _leaf(node) for at, node in found.items()}
