"""
Snapshots: a plane as one file, which `snapshot` writes and `restore` and `fork` read.

It is an ordinary SQLite database with the version of its schema in it, made by SQLite's own backup,
so it is consistent whatever is being written meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from bidplane.plane.storage.journal import SCHEMA_VERSION, Journal
from bidplane.wire import status


def copy(source: Path, target: Path) -> None:
    """Write `source`, which nobody has open, as the single file `target`."""
    connection = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        _backup(connection, target)
    finally:
        connection.close()


def write(journal: Journal, target: Path) -> None:
    """Write an open plane's file as the single file `target`, between two commits."""
    _backup(journal.connection, target)


def _backup(source: apsw.Connection, target: Path) -> None:
    connection = apsw.Connection(str(target))
    try:
        with connection.backup("main", source, "main") as backup:
            backup.step(-1)
        # One file: nothing stays in a write-ahead log beside it.
        connection.pragma("journal_mode", "DELETE")
    finally:
        connection.close()


def check(path: Path) -> None:
    """Raise 400 unless `path` is a plane that this version can read."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            version = int(connection.pragma("user_version"))
            check_result = connection.pragma("quick_check")
            uid = list(connection.execute("SELECT value FROM fact WHERE name = 'uid'"))
        finally:
            connection.close()
    except (apsw.NotADBError, apsw.SQLError, apsw.CantOpenError, apsw.CorruptError) as error:
        raise status.bad_request(f"this is no snapshot of a plane: {error}") from None
    if version > SCHEMA_VERSION:
        raise status.bad_request(
            f"the snapshot was made by a newer Bidplane (its schema is {version}, ours"
            f" {SCHEMA_VERSION}): upgrade, then restore it"
        )
    if check_result != "ok" or not uid or not version:
        raise status.bad_request(
            f"the snapshot is damaged: {check_result if uid else 'it has no uid'}"
        )
