"""
The JSONPath of printer columns: `.spec.a`, `.a[0]`, `.a[*].b`, `['a.b']`, `[?(@.type=="X")]`.

Anything else finds nothing, as in upstream, where a column that cannot be read is blank.
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
    steps, at = [], 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return (("nothing", "", ""),)
        at = found.end()
        if found["key"]:
            steps.append(("filter", found["key"], found["value"]))
        elif found["quoted"] is not None:
            steps.append(("name", found["quoted"], ""))
        elif found["index"]:
            steps.append(("index", found["index"], ""))
        else:
            steps.append(("name", found["name"].replace("\\.", "."), ""))
    return tuple(steps)


def find(obj: Any, path: str) -> list[Any]:
    """Every value at `path`."""
    values = [obj]
    for step, name, wanted in _steps(path):
        values = [found for value in values for found in _step(value, step, name, wanted)]
    return values


def first(obj: Any, path: str) -> Any:
    """The value at `path`, or None."""
    return next((value for value in find(obj, path) if value is not None), None)


def _step(value: Any, step: str, name: str, wanted: str) -> list[Any]:
    if step == "name":
        return [value[name]] if isinstance(value, Mapping) and name in value else []
    if not isinstance(value, list):
        return []
    if step == "filter":
        return [item for item in value if str(first(item, f".{name}")) == wanted]
    if step == "index":
        if name == "*":
            return list(value)
        at = int(name)
        return [value[at]] if -len(value) <= at < len(value) else []
    return []
