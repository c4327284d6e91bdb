"""Lines of a trace, plain or gzipped, each with the name it has in an error."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

from bidplane.errors import UserError


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    try:
        packed = path.suffix == ".gz"
        with gzip.open(path, "rt") if packed else path.open(newline="") as lines:
            yield cast("TextIO", lines)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def numbered(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not empty, and where it is."""
    with open_text(path) as lines:
        number = 0
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}, line {number}", line.strip()
        except (OSError, EOFError, UnicodeDecodeError) as error:  # not what it says it is
            raise UserError(f"{path}, after line {number}, cannot be read: {error}") from error


def rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The rows of a CSV with a header, and where each is."""
    lines = numbered(path)
    _, header = next(lines, ("", ""))
    columns = [column.strip() for column in next(csv.reader([header]), [])]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise UserError(f"{path} is no such trace: it has no column {', '.join(missing)}")
    for where, line in lines:
        values = next(csv.reader([line]))
        if len(values) != len(columns):
            raise UserError(f"{where}: it has {len(values)} values for {len(columns)} columns")
        yield where, dict(zip(columns, values, strict=True))


def number(text: str, where: str, what: str, *, least: float = 0.0) -> float:
    """A finite number, not below `least`; else an error that says which and where."""
    try:
        found = float(text)
    except ValueError:
        raise UserError(f"{where}: {what} {text!r} is not a number") from None
    if not math.isfinite(found) or found < least:
        raise UserError(f"{where}: {what} {text} must be {least:g} or more")
    return found
