"""Completed indexes as a Job's status writes them: `0,2-4`."""

from __future__ import annotations

from collections.abc import Iterable


def parse(text: str) -> set[int]:
    """Return the indexes in a text such as `0,2-4`."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return indexes


def write(indexes: Iterable[int]) -> str:
    """Return indexes as text, with ranges joined."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(
        str(first) if first == last else f"{first}{'-' if last - first > 1 else ','}{last}"
        for first, last in ranges
    )
