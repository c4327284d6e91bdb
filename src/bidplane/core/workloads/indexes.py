"""Completed indexes as a Job's status writes them: `0,2-4`."""

from __future__ import annotations

from collections.abc import Iterable


def parse(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def write(indexes: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(
        str(first) if first == last else f"{first}{'-' if last - first > 1 else ','}{last}"
        for first, last in runs
    )
