"""Defaults as recorded from a real server (`wire/data/defaults.json`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from bidplane.wire import data
from bidplane.wire.kinds.rules import Rules

Default = Callable[[dict[str, Any]], None]
_STATUS = "status"


def with_recorded(storage: str, rules: Rules) -> Rules:
    """Return `rules` with the recorded defaults of the kind after them."""
    row = data.defaults()["kinds"].get(storage)
    if row is None:
        return rules
    paths = [
        (tuple(path.replace("[]", ".[]").split(".")), value)
        for path, value in row["defaults"].items()
        if path != _STATUS
    ]
    default, create, status = rules.default, rules.create, row["defaults"].get(_STATUS)

    def defaulted(obj: dict[str, Any]) -> None:
        default(obj)
        for path, value in paths:
            _put(obj, path, value)

    def created(obj: dict[str, Any]) -> None:
        create(obj)
        # Only on creation, and after field ownership is recorded: nobody owns an empty status.
        if status is not None and _STATUS not in obj:
            obj[_STATUS] = _copied(status)

    return Rules(
        default=defaulted if paths else default,
        create=created if status is not None else create,
        update=rules.update,
        validate=rules.validate,
        change=rules.change,
        name=rules.name,
        generation=rules.generation or row["generation"],
        keeps_status=rules.keeps_status,
    )


def _put(node: Any, path: tuple[str, ...], value: Any) -> None:
    """Set a default at a path, in every element of a list (`[]`), where there is no value."""
    head, rest = path[0], path[1:]
    if head == "[]":
        if isinstance(node, list):
            for element in node:
                _put(element, rest, value)
    elif not isinstance(node, dict):
        return
    elif not rest:
        if node.get(head) is None:
            node[head] = _copied(value)
    elif head in node:
        _put(node[head], rest, value)


def _copied(value: Any) -> Any:
    """Return a copy, so that objects do not share a default."""
    return copy.deepcopy(value) if isinstance(value, dict | list) else value
