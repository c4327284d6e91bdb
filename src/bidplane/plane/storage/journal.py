"""
A plane's file: an append-only log of revisions in SQLite, in etcd's model.

Every change is one row: its revision (the row id), the key, the revision that created the
object, and the object as JSON. A deletion is a row too; it keeps the object's last state,
which a watcher that resumes after a restart must see. Compaction drops replaced rows.

One connection, held exclusively: nobody else may write, and the WAL needs no shared memory.
With `durable`, a commit returns after the WAL is synced: what was acknowledged survives
power loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import apsw
import msgspec

from bidplane.plane.storage import watermark
from bidplane.storage.sealing import PREFIX, Sealing

SCHEMA_VERSION = 1
DatabaseError = apsw.Error  # the base of all that SQLite raises
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
_WAL_LIMIT = 4 << 20  # bytes that a write-ahead log keeps once its pages are in the file
_VACUUM_LEAST = 1 << 20  # bytes of free pages below which a file is left as it is
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


class JournalRow(msgspec.Struct, frozen=True):
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
        sealing: Sealing | None = None,
    ) -> None:
        """
        Open or create the file.

        `begin_with` are the facts of a new file; `sealing` encrypts the objects. `vfs` names the
        file system SQLite uses: tests have one that loses power.
        """
        self.path = path
        self._durable = durable
        marked = watermark.read(path)
        if marked is not None and (not path.exists() or not path.stat().st_size):
            raise watermark.PlaneDamaged(path, "is empty, and the plane in it existed")
        self._sealing = sealing or Sealing()
        self._db = apsw.Connection(str(path), vfs=vfs, statementcachesize=_STATEMENTS)
        # A killed process does not checkpoint, and neither do we when closed: reopening
        # is the same path either way, and closing is quick.
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._db.pragma("page_size", _PAGE_BYTES)
        # Of a new file; one of an earlier release is changed when it is first made smaller.
        self._db.pragma("auto_vacuum", "INCREMENTAL")
        self._db.pragma("locking_mode", "EXCLUSIVE")
        self._db.pragma("journal_mode", "WAL")
        # Of a new file the first commit after this one syncs both, and is the first that counts.
        self._db.pragma("synchronous", "NORMAL" if durable else "OFF")
        self._db.pragma("cache_size", -_CACHE_KIB)
        self._db.pragma("journal_size_limit", _WAL_LIMIT)
        if self._sealing:
            # No plain text from before the encryption stays in freed pages.
            self._db.pragma("secure_delete", "ON")
        self.is_new = self._db.pragma("user_version") == 0
        if self.is_new:
            with self._db:
                self._db.execute(_SCHEMA)
                self._db.pragma("user_version", SCHEMA_VERSION)
                for name, value in (begin_with or {}).items():
                    self._set_fact(name, value)
        if durable:
            self._db.pragma("synchronous", "FULL")
        try:
            newest = max(self.head(), int(self.fact("compacted") or 0))
            watermark.check(path, newest)
        except BaseException:
            self._db.close()
            raise
        if durable and marked is None:
            watermark.write(path, newest)

    @property
    def connection(self) -> apsw.Connection:
        """The connection, for a copy of the whole file; see `snapshots`."""
        return self._db

    def append(self, rows: Iterable[JournalRow]) -> None:
        """Commit all of `rows`, or none: one statement is a transaction of its own."""
        heads, values, offset = [], [], 0
        for row in rows:
            value = self._sealing.seal(row.key, row.value)
            size = len(value)
            heads.append((row.revision, row.key, row.created, int(row.deleted), offset, size))
            values.append(value)
            offset += size
        if heads:
            self._db.execute(_INSERT, (msgspec.json.encode(heads).decode(), b"".join(values)))
            if self._durable:
                watermark.write(self.path, heads[-1][0])

    def rows(self) -> Iterator[JournalRow]:
        """Yield the whole log, oldest first."""
        for revision, key, created, deleted, value in self._db.execute(
            "SELECT revision, key, created, deleted, value FROM log ORDER BY revision"
        ):
            yield JournalRow(revision, key, created, bool(deleted), self._sealing.open(key, value))

    def check_keys(self) -> None:
        """Raise `Sealed` if the newest encrypted rows cannot be decrypted."""
        newest = self._db.execute(
            "SELECT key, value FROM log WHERE substr(value, 1, 8) = ?"
            " ORDER BY revision DESC LIMIT 16",
            (PREFIX,),
        )
        for key, value in newest:
            self._sealing.open(key, value)

    def rows_of(self, resource: str) -> list[JournalRow]:
        """Return the log of one resource, oldest first."""
        rows = self._db.execute(
            "SELECT revision, key, created, deleted, value FROM log"
            " WHERE key > ?1 || '/' AND key < ?1 || '0' ORDER BY revision",  # "0" follows "/"
            (resource,),
        )
        return [
            JournalRow(revision, key, created, bool(deleted), self._sealing.open(key, value))
            for revision, key, created, deleted, value in rows
        ]

    def head(self) -> int:
        """Return the newest revision."""
        return int(next(self._db.execute("SELECT max(revision) FROM log"))[0] or 0)

    def compact(self, revision: int) -> None:
        """Delete the rows that were replaced or deleted at or before `revision`."""
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

    def shrink(self) -> None:
        """Give unused pages back to the disk, if they are worth the work."""
        free = int(self._db.pragma("freelist_count")) * _PAGE_BYTES
        if free < max(_VACUUM_LEAST, self.size() // 4):
            return
        if int(self._db.pragma("auto_vacuum")) == 2:
            list(self._db.execute("PRAGMA incremental_vacuum"))  # a step for each page
        else:
            self._db.execute("VACUUM")
        list(self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))

    def size(self) -> int:
        """Return the bytes on disk, with those of the write-ahead log."""
        total = 0
        for path in (self.path, self.path.with_name(self.path.name + "-wal")):
            with suppress(OSError):
                total += path.stat().st_size
        return total

    def fact(self, name: str) -> str | None:
        """Return the value that `remember` stored under `name`; None when there is none."""
        rows: Sequence[tuple[str]] = list(
            self._db.execute("SELECT value FROM fact WHERE name = ?", (name,))
        )
        return rows[0][0] if rows else None

    def remember(self, name: str, value: str) -> None:
        """Store a fact of the plane under `name`."""
        with self._db:
            self._set_fact(name, value)

    def _set_fact(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))

    def close(self) -> None:
        self._db.close()
