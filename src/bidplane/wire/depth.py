"""
The limit on the nesting depth of JSON bodies.

What reads bodies walks them by recursion. A bound far below the interpreter's own, and far above
what any object has, lets all of it do without a bound of its own.
"""

from __future__ import annotations

from typing import Any

LIMIT = 128
MESSAGE = f"nested deeper than {LIMIT} levels; send an object with fewer levels"


class TooDeep(ValueError):
    """A value with more levels than `LIMIT`."""

    def __init__(self) -> None:
        super().__init__(MESSAGE)


def check(value: Any, size: int | None = None) -> None:
    """
    Raise `TooDeep` if `value` has more levels than `LIMIT`.

    `size` is the number of brackets it was written with, if that is known: few cannot be deep.
    """
    if size is None or size > LIMIT:
        of(value)


def brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def of(value: Any) -> int:
    """Return the number of levels of `value`; raises `TooDeep` beyond `LIMIT`."""
    depth = 0
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    while level:
        depth += 1
        if depth > LIMIT:
            raise TooDeep
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    return depth
