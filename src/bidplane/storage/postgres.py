"""
One PostgreSQL connection, one writer at a time among any number of processes.

A transaction begins by taking an advisory lock that is named after a table, so that a
writer reads the state that the last one left. Readers never wait. psycopg is an optional
dependency: it is imported when a database is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bidplane.errors import UserError
from bidplane.storage.values import ConstraintError, Row, Value

if TYPE_CHECKING:
    import psycopg

# Held while the tables are made: there is no table to name the lock after yet.
_MAKING = 0x62696470  # "bidp"


def is_dsn(text: str) -> bool:
    return text.startswith(("postgresql://", "postgres://"))


class PostgresDatabase:
    """`durable=False` lets a commit return before it is on disk: never for money."""

    def __init__(self, dsn: str, *, durable: bool = True, read_only: bool = False) -> None:
        try:
            import psycopg
        except ImportError:
            raise UserError(
                "PostgreSQL needs psycopg: install it with `pip install 'bidplane[postgres]'`"
            ) from None
        self._psycopg = psycopg
        self._dsn, self._durable, self._read_only = dsn, durable, read_only
        self._inside = False
        self._cursors = 0
        self._connection = self._connect()

    def __repr__(self) -> str:
        return f"<PostgresDatabase {self._connection.info.dbname}>"

    def execute(self, sql: str, args: Sequence[Value] = ()) -> list[Row]:
        """Return the rows; `sql` has a `?` for each of `args`, as everywhere in Bidplane."""
        with self._refusing():
            cursor = self._current().execute(_marks(sql), tuple(args) or None)
            return cursor.fetchall() if cursor.description else []

    def execute_many(self, sql: str, rows: Sequence[Row]) -> None:
        """Execute one statement for many rows, without waiting for each answer."""
        with self._refusing(), self._current().cursor() as cursor:
            cursor.executemany(_marks(sql), rows)

    def copy(self, table: str, rows: Sequence[Row]) -> None:
        """Insert `rows`, whole: the fastest way in. Constraints hold as for any insert."""
        with (
            self._refusing(),
            self._current().cursor() as cursor,
            cursor.copy(f"COPY {table} FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def scan(self, sql: str) -> Iterator[Row]:
        """Yield rows as they are read, inside `reading` or a transaction."""
        self._cursors += 1
        with self._current().cursor(name=f"scan_{self._cursors}") as cursor:
            yield from cursor.execute(sql)

    @contextmanager
    def transaction(self, lock: str) -> Iterator[None]:
        """All or nothing. A second writer waits here, not half-way, on the table `lock`."""
        with self._block("BEGIN"):
            # Read committed: reads after the lock see the state that the last writer left.
            self.execute(f"SELECT pg_advisory_xact_lock('{lock}'::regclass::oid::bigint)")
            yield

    @contextmanager
    def making(self) -> Iterator[None]:
        """A transaction that makes tables; two processes that start at once take turns."""
        with self._block("BEGIN"):
            self.execute(f"SELECT pg_advisory_xact_lock({_MAKING})")
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads inside see one moment, whatever is written meanwhile."""
        with self._block("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"):
            yield

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _block(self, begin: str) -> Iterator[None]:
        self.execute(begin)
        self._inside = True
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if not self._connection.closed:
                self._connection.execute("ROLLBACK")
            raise
        finally:
            self._inside = False

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (self._psycopg.IntegrityError, self._psycopg.DataError) as error:
            raise ConstraintError(str(error).partition("\n")[0]) from error

    def _current(self) -> psycopg.Connection[Row]:
        """A connection that broke is made anew, but never inside a transaction."""
        if self._connection.closed and not self._inside:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> psycopg.Connection[Row]:
        settings = [f"SET synchronous_commit = {'on' if self._durable else 'off'}"]
        if self._read_only:
            settings.append("SET default_transaction_read_only = on")
        try:
            connection: psycopg.Connection[Row] = self._psycopg.connect(self._dsn, autocommit=True)
            for setting in settings:
                connection.execute(setting)
        except (self._psycopg.OperationalError, self._psycopg.ProgrammingError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"cannot open the PostgreSQL ledger: {reason}") from error
        return connection


def _marks(sql: str) -> Any:
    return sql.replace("?", "%s")
