"""The ledger in PostgreSQL: for several writers, and for databases that are backed up anyway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from bidplane.errors import UserError
from bidplane.ledger.audit.schema import POSTGRES_TRIGGERS
from bidplane.ledger.records import Record
from bidplane.ledger.store import (
    ConstraintViolated,
    find_statement,
    other_version,
    update_statement,
)
from bidplane.ledger.tables import JOURNAL, SCHEMA_VERSION, TABLES, Table, migrations
from bidplane.storage.postgres import PostgresDatabase
from bidplane.storage.values import ConstraintError, Row, Value

R = TypeVar("R", bound=Record)

# Bytes decide the order of texts, as they do in SQLite: never a locale.
_TYPES = {" TEXT": ' TEXT COLLATE "C"', " INTEGER": " BIGINT", " BLOB": " BYTEA", ") STRICT": ")"}

_REST = f"""
CREATE FUNCTION transfer_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a transfer is never changed or deleted'
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER transfer_is_append_only BEFORE UPDATE OR DELETE ON transfer
    FOR EACH ROW EXECUTE FUNCTION transfer_is_append_only();
CREATE TABLE ledger_version (version BIGINT NOT NULL);
INSERT INTO ledger_version VALUES ({SCHEMA_VERSION});
{POSTGRES_TRIGGERS}"""


class PostgresStore:
    def __init__(self, dsn: str, *, durable: bool = True, read_only: bool = False) -> None:
        self._db = PostgresDatabase(dsn, durable=durable, read_only=read_only)
        try:
            self._prepare(read_only)
        except BaseException:
            self._db.close()
            raise

    def __repr__(self) -> str:
        return f"<PostgresStore {self._db!r}>"

    def transaction(self) -> AbstractContextManager[None]:
        return self._db.transaction(JOURNAL.name)

    def reading(self) -> AbstractContextManager[None]:
        return self._db.reading()

    def insert(self, table: Table[R], *records: R) -> None:
        with _refusing():
            self._db.copy(table.name, [table.row(record) for record in records])

    def update(self, table: Table[R], *records: R) -> None:
        rows = [table.row(record) for record in records]
        with _refusing():
            self._db.execute_many(update_statement(table), [(*row[1:], row[0]) for row in rows])

    def get(self, table: Table[R], key: Value) -> R | None:
        sql = f"SELECT * FROM {table.name} WHERE {table.key} = ?"
        return next((table.record_of(row) for row in self._db.execute(sql, (key,))), None)

    def get_many(self, table: Table[R], keys: Sequence[str]) -> list[R]:
        # A join, not = ANY: that compares every row with every key.
        requested = "unnest(?::text[]) AS requested (key)"
        sql = f"SELECT t.* FROM {requested} JOIN {table.name} t ON t.{table.key} = requested.key"
        return [table.record_of(row) for row in self._db.execute(sql, (list(keys),))]

    def find(self, table: Table[R], where: str = "", *args: Value, limit: int = 0) -> list[R]:
        rows = self._db.execute(find_statement(table, where, limit), args)
        return [table.record_of(row) for row in rows]

    def rows(self, table: Table[R]) -> Iterator[Row]:
        return self._db.scan(f"SELECT * FROM {table.name} ORDER BY {table.key}")

    def last(self, table: Table[R]) -> R | None:
        sql = f"SELECT * FROM {table.name} ORDER BY {table.key} DESC LIMIT 1"
        return next((table.record_of(row) for row in self._db.execute(sql)), None)

    def damage(self) -> str:
        return ""  # the server checks its pages itself, where it was told to

    def close(self) -> None:
        self._db.close()

    def _prepare(self, read_only: bool) -> None:
        if not read_only and self._version() != SCHEMA_VERSION:
            with self._db.making():
                version = self._version()  # somebody else may have done it while we waited
                if version == 0:
                    self._db.execute(schema())
                elif changes := migrations(version):
                    self._db.execute(translated(changes) + POSTGRES_TRIGGERS)
                    self._db.execute("UPDATE ledger_version SET version = ?", (SCHEMA_VERSION,))
        version = self._version()
        if version == 0:
            raise UserError("there is no ledger in that PostgreSQL database yet")
        if version != SCHEMA_VERSION:
            raise UserError(other_version("that PostgreSQL database", version))

    def _version(self) -> int:
        """0 where there is no ledger."""
        if not self._is_there():
            return 0
        version: int = self._db.execute("SELECT version FROM ledger_version")[0][0]
        return version

    def _is_there(self) -> bool:
        # Asked of the catalogue itself: to_regclass may answer from before we had the lock.
        sql = "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?"
        return bool(self._db.execute(sql, ("ledger_version",)))


def schema() -> str:
    return translated(TABLES) + _REST


def translated(text: str) -> str:
    for sqlite, postgres in _TYPES.items():
        text = text.replace(sqlite, postgres)
    return text


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ConstraintError as error:
        raise ConstraintViolated(str(error)) from error
