"""
Strategic merge patch: as a merge patch, but lists that have a merge key are merged by it.

Directives: `$patch: replace|delete|merge` in an object or a list's entry,
`$deleteFromPrimitiveList/FIELD`, `$setElementOrder/FIELD`, `$retainKeys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.wire import status
from bidplane.wire.patches.jsonpatch import copy
from bidplane.wire.schema.shapes import SchemaNode

_DIRECTIVE = "$patch"
_DELETE = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"


def strategic(
    target: Mapping[str, Any], patch: Mapping[str, Any], shape: SchemaNode
) -> dict[str, Any]:
    """Return `target` with `patch` applied by its `shape`; neither is changed."""
    return _object(target, patch, shape)


def _object(target: Any, patch: Mapping[str, Any], shape: SchemaNode | None) -> dict[str, Any]:
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: copy(value) for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise status.bad_request(f"unknown patch type {directive!r} in strategic merge patch")
    result: dict[str, Any] = dict(target) if isinstance(target, Mapping) else {}
    _retain(result, patch)
    for key, value in patch.items():
        if key.startswith(_DELETE):
            _delete_from(result, key[len(_DELETE) :], value)
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN) or key.startswith((_DELETE, _ORDER)):
            continue
        child = _child(shape, key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = _object(result.get(key), value, child)
        elif isinstance(value, list) and child is not None and "merge" in child.patch_strategy:
            result[key] = _list(result.get(key), value, child)
        else:
            result[key] = copy(value)
    _reorder(result, target, patch, shape)
    return result


def _reorder(
    result: dict[str, Any], target: Any, patch: Mapping[str, Any], shape: SchemaNode | None
) -> None:
    before = target if isinstance(target, Mapping) else {}
    for name in {key.removeprefix(_ORDER) for key in patch if not key.startswith(_DELETE)}:
        child = _child(shape, name)
        if child is None or "merge" not in child.patch_strategy:
            continue
        order = patch.get(f"{_ORDER}{name}", patch.get(name))
        if isinstance(order, list) and isinstance(result.get(name), list):
            result[name] = _order(before.get(name), result[name], order, child.merge_key)


def _child(shape: SchemaNode | None, name: str) -> SchemaNode | None:
    if shape is None:
        return None
    return shape.fields.get(name) or shape.values


def _retain(result: dict[str, Any], patch: Mapping[str, Any]) -> None:
    if _RETAIN in patch:
        keep = patch[_RETAIN]
        if not isinstance(keep, list) or not all(isinstance(name, str) for name in keep):
            raise status.bad_request(f"{_RETAIN} must be a list of fields' names")
        for name in [name for name in result if name not in keep]:
            del result[name]


def _delete_from(result: dict[str, Any], name: str, values: Any) -> None:
    if not isinstance(values, list):
        raise status.bad_request(f"{_DELETE}{name} must be a list of the values to delete")
    if isinstance(result.get(name), list):
        result[name] = [item for item in result[name] if item not in values]


def _list(target: Any, patch: list[Any], shape: SchemaNode) -> list[Any]:
    existing = list(target) if isinstance(target, list) else []
    if not shape.merge_key:  # a set of plain values
        return existing + [copy(item) for item in patch if item not in existing]
    key = shape.merge_key
    if any(isinstance(item, Mapping) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [
            copy(item) for item in patch if not isinstance(item, Mapping) or _DIRECTIVE not in item
        ]
    for item in patch:
        if not isinstance(item, Mapping) or key not in item:
            raise status.bad_request(f"map: {item} does not contain declared merge key: {key}")
        if isinstance(item[key], dict | list):
            raise status.bad_request(f"the merge key {key} must be text or a number: {item}")
        at = next((i for i, old in enumerate(existing) if old.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            existing = [old for old in existing if old.get(key) != item[key]]
        elif at is None:
            existing.append(_object({}, item, shape.items))
        else:
            existing[at] = _object(existing[at], item, shape.items)
    return existing


def _order(before: Any, items: list[Any], order: list[Any], key: str) -> list[Any]:
    """
    Return the items in the order that the patch states; unnamed items keep their own order.

    The two are merged: an entry that the patch does not name goes before the next named one
    only if it was before it already. So new entries come first.
    """

    def identity(item: Any) -> Any:
        value = item.get(key) if key and isinstance(item, Mapping) else item
        # Not what a list of this kind has; validation says so of the whole.
        return repr(value) if isinstance(value, Mapping | list) else value

    positions = {identity(item): at for at, item in reversed(list(enumerate(order)))}
    live = {
        identity(item): at for at, item in enumerate(before if isinstance(before, list) else ())
    }
    named = sorted(
        (item for item in items if identity(item) in positions),
        key=lambda item: positions[identity(item)],
    )
    unnamed = [item for item in items if identity(item) not in positions]
    woven: list[Any] = []
    while named and unnamed:
        place, rival = live.get(identity(unnamed[0])), live.get(identity(named[0]))
        earlier = place is not None and rival is not None and place < rival
        woven.append(unnamed.pop(0) if earlier else named.pop(0))
    return woven + named + unnamed
