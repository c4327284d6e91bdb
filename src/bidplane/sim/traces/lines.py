"""Lines of a trace, plain or gzipped, each with its place for error messages."""

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
    """Open a plain or gzipped text file."""
    try:
        packed = path.suffix == ".gz"
        with gzip.open(path, "rt") if packed else path.open(newline="") as lines:
            yield cast("TextIO", lines)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def numbered(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not empty, with its place."""
    with open_text(path) as lines:
        number = 0
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}, line {number}", line.strip()
        except (
            OSError,
            EOFError,
            UnicodeDecodeError,
        ) as error:  # not in the format its name promises
            raise UserError(f"{path}, after line {number}, cannot be read: {error}") from error


def rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The rows of a CSV with a header, each with its place."""
    lines = numbered(path)
    _, header = next(lines, ("", ""))
    columns = [column.strip() for column in next(csv.reader([header]), [])]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise UserError(f"{path} is no such trace: it has no column {', '.join(missing)}")
    for location, line in lines:
        values = next(csv.reader([line]))
        if len(values) != len(columns):
            raise UserError(f"{location}: it has {len(values)} values for {len(columns)} columns")
        yield location, dict(zip(columns, values, strict=True))


def number(text: str, location: str, subject: str, *, least: float = 0.0) -> float:
    """
    Parse a finite number, not below `least`; else raise an error that names the subject and the
    place.
    """
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{location}: {subject} {text!r} is not a number") from None
    if not math.isfinite(value) or value < least:
        raise UserError(f"{location}: {subject} {text} must be {least:g} or more")
    return value
