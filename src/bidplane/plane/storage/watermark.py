"""
A small file beside a plane's own: the newest revision that was committed.

A file that was emptied, cut short, or lost its write-ahead log is a sound SQLite database of an
earlier time, or a new one. The mark says that there was more. It is written after the commit is
on disk and is not synced itself, so it is never ahead of what a crash leaves.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SUFFIX = "-revision"
REMEDY = (
    "put the file back from a backup; or delete the plane and restore a snapshot of it"
    " (`bidplane plane restore`). If what is in the file now is what you want, delete the file"
    f" of that name with {SUFFIX!r} beside it"
)


def _mark_path(database: Path) -> Path:
    return database.with_name(database.name + SUFFIX)


class PlaneDamaged(Exception):
    """A plane's file does not have what was committed to it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} {problem}: {REMEDY}")


def read(database: Path) -> int | None:
    """Return the newest revision that is known to have been committed; None without a mark."""
    try:
        text = _mark_path(database).read_text()
    except OSError:
        return None
    return int(text) if text.strip().isdecimal() else 0


def write(database: Path, revision: int) -> None:
    """Write the mark; blocks. On a full disk the earlier mark stays, which is true as well."""
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(_mark_path(database), flags, 0o600)
        try:
            os.pwrite(descriptor, f"{revision:020d}".encode(), 0)
        finally:
            os.close(descriptor)


def check(database: Path, head: int) -> None:
    """Raise `PlaneDamaged` when `head`, the newest revision in a file, is behind its mark."""
    marked = read(database)
    if marked is not None and head < marked:
        raise PlaneDamaged(
            database,
            f"ends at revision {head}, and revision {marked} was committed to it; its write-ahead"
            f" log ({database.name}-wal) or a part of it is lost",
        )
