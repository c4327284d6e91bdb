"""
One SQLite connection, one writer.

apsw brings its own SQLite: Debian 12's has a bug that can corrupt a database in WAL mode.
Write-ahead logging lets readers in while the writer writes; with synchronous FULL, what
was committed survives a power cut.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from bidplane.errors import UserError
from bidplane.storage.values import ConstraintError, Damaged, Row, Value

# A page that makes no sense, a file that ends too early, text that is none.
_DAMAGE = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.IOError,
    UnicodeDecodeError,
)


_WAL_DELAYS = [0.01 * 1.5**attempt for attempt in range(12)]  # seconds; 2.6 in all


def limit_connection_memory() -> None:
    """
    Let connections of this process allocate memory as they need it. Call before the first is
    opened.

    By default each takes 45 KiB for small allocations when it is opened: for a process with a
    thousand connections that are rarely used, that costs more than it saves.
    """
    apsw.shutdown()
    apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, 0, 0)
    apsw.initialize()


class Database:
    """`durable=False` leaves the disk to the kernel: for the simulator, never for money."""

    def __init__(self, path: Path, *, durable: bool = True, read_only: bool = False) -> None:
        self.path = path
        flags = (
            apsw.SQLITE_OPEN_READONLY
            if read_only
            else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        )
        try:
            self._connection = apsw.Connection(str(path), flags=flags)
            self._connection.set_busy_timeout(5000)
            self.execute("PRAGMA schema_version")  # reads the file: is it a database at all?
            if not read_only:
                self._use_wal()
                self.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
                self.execute("PRAGMA foreign_keys = ON")
        except (apsw.CantOpenError, apsw.ReadOnlyError, Damaged) as error:
            raise UserError(f"cannot open {path}: {error}") from error

    def __repr__(self) -> str:
        return f"<Database {self.path.name}>"

    def _use_wal(self) -> None:
        """
        Turn the write-ahead log on. SQLite does not wait for a lock here, whatever the busy
        time-out says: several processes that open a new file at once must try again.
        """
        for delay in _WAL_DELAYS:
            try:
                self.execute("PRAGMA journal_mode = WAL")
                return
            except apsw.BusyError:
                time.sleep(delay)
        self.execute("PRAGMA journal_mode = WAL")

    def execute(self, sql: str, args: Sequence[Value] = ()) -> list[Row]:
        try:
            return list(self._connection.execute(sql, tuple(args)))
        except apsw.ConstraintError as error:
            raise ConstraintError(str(error)) from error
        except _DAMAGE as error:
            raise Damaged(f"{self.path}: {error}") from error

    def scan(self, sql: str, args: Sequence[Value] = ()) -> Iterator[Row]:
        """Yield rows as they are read, for results too large for memory."""
        try:
            yield from self._connection.execute(sql, tuple(args))
        except _DAMAGE as error:
            raise Damaged(f"{self.path}: {error}") from error

    def damage(self) -> str:
        """Return the damage that the database finds in its pages and indexes; "" if none."""
        try:
            rows = self.execute("PRAGMA integrity_check(1)")
        except Damaged as damaged:
            return str(damaged)
        text = str(rows[0][0]) if rows else "the check returned nothing"
        return "" if text == "ok" else f"{self.path}: {text}"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements or none. IMMEDIATE: a second writer waits here, not half-way."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let all reads inside see one moment, whatever is written meanwhile."""
        self.execute("BEGIN")
        try:
            yield
        finally:
            self.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
