"""
One SQLite connection, one writer.

apsw brings its own SQLite: Debian 12's has a bug that can corrupt a database in WAL mode.
Write-ahead logging lets readers in while the writer writes; with synchronous FULL, what
was committed survives a power cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from bidplane.errors import UserError
from bidplane.storage.values import ConstraintError, Row, Value


def hold_little() -> None:
    """
    Have connections of this process take memory as they need it; before the first is opened.

    By default each takes 45 KiB for small allocations when it is opened. Who holds a thousand
    connections that are rarely used pays for that with more than it saves.
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
                self.execute("PRAGMA journal_mode = WAL")
                self.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
                self.execute("PRAGMA foreign_keys = ON")
        except (apsw.CantOpenError, apsw.NotADBError, apsw.ReadOnlyError) as error:
            raise UserError(f"cannot open {path}: {error}") from error

    def __repr__(self) -> str:
        return f"<Database {self.path.name}>"

    def execute(self, sql: str, args: Sequence[Value] = ()) -> list[Row]:
        try:
            return list(self._connection.execute(sql, tuple(args)))
        except apsw.ConstraintError as error:
            raise ConstraintError(str(error)) from error

    def scan(self, sql: str, args: Sequence[Value] = ()) -> Iterator[Row]:
        """Rows as they are read, for results too large to hold."""
        return iter(self._connection.execute(sql, tuple(args)))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. IMMEDIATE: a second writer waits here, not half-way."""
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
        """All reads inside see one moment, whatever is written meanwhile."""
        self.execute("BEGIN")
        try:
            yield
        finally:
            self.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
