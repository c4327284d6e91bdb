"""
A plane's file: an append-only log of revisions in SQLite, in etcd's model.

Every change is one row: its revision (the row id), the key, the revision that created the
object, and the object as JSON. A deletion is a row too; it keeps the object's last state,
which a watcher that resumes after a restart is owed. Compaction drops what was replaced.

One connection, held exclusively: nobody else may write, and the WAL needs no shared memory.
With `durable`, a commit returns after the WAL is synced: what was acknowledged survives
power loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import apsw
import msgspec

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE log (
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    created INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX log_by_key ON log (key, revision);
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
# At 1,000 planes SQLite's own memory is most of what a plane costs: it takes twenty pages at
# once, whatever it is told to keep. Reads come from our memory, and commits are small.
_PAGE_BYTES = 2048
_CACHE_KIB = 32
_STATEMENTS = 2  # that are kept prepared: what a commit needs
# However many rows: a statement for each number of them takes more memory than a plane's
# objects do. And one for all, not one a row: between two statements the event loop takes the
# interpreter's lock, and may keep it for milliseconds. The values come as one blob, with where
# each is in it.
_INSERT = """
INSERT INTO log SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3,
    substr(?2, 1 + (value ->> 4), value ->> 5)
FROM json_each(?1)
"""


class Row(msgspec.Struct, frozen=True):
    revision: int
    key: str
    created: int
    deleted: bool
    value: bytes


class Journal:
    """The log of one plane. Methods block; one thread uses it at a time."""

    def __init__(
        self,
        path: Path,
        *,
        durable: bool = True,
        begin_with: Mapping[str, str] | None = None,
        vfs: str | None = None,
    ) -> None:
        """
        `begin_with` are the facts a new file has from the start.

        `vfs` names the file system SQLite is to use: tests have one that loses power.
        """
        self.path = path
        self._db = apsw.Connection(str(path), vfs=vfs, statementcachesize=_STATEMENTS)
        # A killed process does not checkpoint, and neither do we when closed: reopening
        # is the same path either way, and closing is quick.
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._db.pragma("page_size", _PAGE_BYTES)
        self._db.pragma("locking_mode", "EXCLUSIVE")
        self._db.pragma("journal_mode", "WAL")
        # Of a new file the first commit after this one syncs both, and is the first that counts.
        self._db.pragma("synchronous", "NORMAL" if durable else "OFF")
        self._db.pragma("cache_size", -_CACHE_KIB)
        self.is_new = self._db.pragma("user_version") == 0
        if self.is_new:
            with self._db:
                self._db.execute(_SCHEMA)
                self._db.pragma("user_version", SCHEMA_VERSION)
                for name, value in (begin_with or {}).items():
                    self._set_fact(name, value)
        if durable:
            self._db.pragma("synchronous", "FULL")

    @property
    def connection(self) -> apsw.Connection:
        """For a copy of the whole file; see `snapshots`."""
        return self._db

    def append(self, rows: Iterable[Row]) -> None:
        """Commit all of `rows`, or none: one statement is a transaction of its own."""
        heads, values, at = [], [], 0
        for row in rows:
            size = len(row.value)
            heads.append((row.revision, row.key, row.created, int(row.deleted), at, size))
            values.append(row.value)
            at += size
        if heads:
            self._db.execute(_INSERT, (msgspec.json.encode(heads).decode(), b"".join(values)))

    def rows(self) -> Iterator[Row]:
        """The whole log, oldest first."""
        for revision, key, created, deleted, value in self._db.execute(
            "SELECT revision, key, created, deleted, value FROM log ORDER BY revision"
        ):
            yield Row(revision, key, created, bool(deleted), value)

    def rows_of(self, resource: str) -> list[Row]:
        """The log of one resource, oldest first."""
        found = self._db.execute(
            "SELECT revision, key, created, deleted, value FROM log"
            " WHERE key > ?1 || '/' AND key < ?1 || '0' ORDER BY revision",  # "0" follows "/"
            (resource,),
        )
        return [
            Row(revision, key, created, bool(deleted), value)
            for revision, key, created, deleted, value in found
        ]

    def head(self) -> int:
        """The newest revision."""
        return int(next(self._db.execute("SELECT max(revision) FROM log"))[0] or 0)

    def compact(self, revision: int) -> None:
        """Forget what was replaced or deleted at or before `revision`."""
        # What an earlier compaction left is replaced by something after it, or stays: only the
        # rows since then say what can go, however long the log is.
        since = int(self.fact("compacted") or 0)
        with self._db:
            self._db.execute(
                "DELETE FROM log WHERE revision IN (SELECT older.revision FROM log AS newer"
                " JOIN log AS older ON older.key = newer.key AND older.revision < newer.revision"
                " WHERE newer.revision > ?1 AND newer.revision <= ?2)",
                (since, revision),
            )
            self._db.execute(
                "DELETE FROM log WHERE revision > ?1 AND revision <= ?2 AND deleted",
                (since, revision),
            )
            self._set_fact("compacted", str(revision))

    def fact(self, name: str) -> str | None:
        """What `remember` wrote under `name`."""
        rows: Sequence[tuple[str]] = list(
            self._db.execute("SELECT value FROM fact WHERE name = ?", (name,))
        )
        return rows[0][0] if rows else None

    def remember(self, name: str, value: str) -> None:
        with self._db:
            self._set_fact(name, value)

    def _set_fact(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))

    def close(self) -> None:
        self._db.close()
