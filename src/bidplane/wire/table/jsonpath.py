"""
The JSONPath of printer columns: `.spec.a`, `.a[0]`, `.a[*].b`, `['a.b']`, `[?(@.type=="X")]`.

Any other expression matches nothing, as upstream, where a column that cannot be read is blank.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

_STEP = re.compile(
    r"\.?\[\?\(@\.(?P<key>[\w.\-/]+)\s*==\s*(?P<quote>[\"'])(?P<value>.*?)(?P=quote)\)\]"
    r"|\.?\[(?P<q>['\"])(?P<quoted>.*?)(?P=q)\]"
    r"|\.?\[(?P<index>-?\d+|\*)\]"
    r"|\.(?P<name>(?:[^.\[\]\\]|\\.)+)"
)


@functools.lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[tuple[str, str, str], ...]:
    path = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    steps, position = [], 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            return (("nothing", "", ""),)
        position = match.end()
        if match["key"]:
            steps.append(("filter", match["key"], match["value"]))
        elif match["quoted"] is not None:
            steps.append(("name", match["quoted"], ""))
        elif match["index"]:
            steps.append(("index", match["index"], ""))
        else:
            steps.append(("name", match["name"].replace("\\.", "."), ""))
    return tuple(steps)


def find(obj: Any, path: str) -> list[Any]:
    """Return every value at `path`."""
    values = [obj]
    for step, name, operand in _steps(path):
        values = [match for value in values for match in _step(value, step, name, operand)]
    return values


def first(obj: Any, path: str) -> Any:
    """Return the value at `path`, or None."""
    return next((value for value in find(obj, path) if value is not None), None)


def _step(value: Any, step: str, name: str, operand: str) -> list[Any]:
    """Return the values that one step of a path leads to."""
    if step == "name":
        return [value[name]] if isinstance(value, Mapping) and name in value else []
    if not isinstance(value, list):
        return []
    if step == "filter":
        return [item for item in value if str(first(item, f".{name}")) == operand]
    if step == "index":
        if name == "*":
            return list(value)
        index = int(name)
        return [value[index]] if -len(value) <= index < len(value) else []
    return []
