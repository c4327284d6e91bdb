"""Defaults as a real server was seen to set them (`wire/data/defaults.json`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from bidplane.wire import data
from bidplane.wire.kinds.rules import Rules

Default = Callable[[dict[str, Any]], None]
_STATUS = "status"


def with_recorded(storage: str, rules: Rules) -> Rules:
    """`rules`, and after them what was recorded of the kind."""
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
        # On creation only, and after it is known who owns what: nobody owns an empty status.
        if status is not None and _STATUS not in obj:
            obj[_STATUS] = _fresh(status)

    return Rules(
        default=defaulted if paths else default,
        create=created if status is not None else create,
        validate=rules.validate,
        change=rules.change,
        name=rules.name,
        generation=rules.generation or row["generation"],
        keeps_status=rules.keeps_status,
    )


def _put(at: Any, path: tuple[str, ...], value: Any) -> None:
    head, rest = path[0], path[1:]
    if head == "[]":
        if isinstance(at, list):
            for one in at:
                _put(one, rest, value)
    elif not isinstance(at, dict):
        return
    elif not rest:
        if at.get(head) is None:
            at[head] = _fresh(value)
    elif head in at:
        _put(at[head], rest, value)


def _fresh(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, dict | list) else value
