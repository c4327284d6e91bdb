"""
The storage of the ledger's rows. The contract is small, so that more than one database
can stand behind it; `tests/ledger` runs every test against each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from bidplane.errors import UserError
from bidplane.ledger.audit.schema import SQLITE_TRIGGERS
from bidplane.ledger.records import Record
from bidplane.ledger.tables import SCHEMA_VERSION, TABLES, Table, migrations
from bidplane.storage.sqlite import Database
from bidplane.storage.values import ConstraintError, Row, Value

R = TypeVar("R", bound=Record)

_TRIGGERS = """
CREATE TRIGGER transfer_is_append_only BEFORE UPDATE ON transfer
    BEGIN SELECT RAISE (ABORT, 'a transfer is never changed'); END;
CREATE TRIGGER transfer_is_never_deleted BEFORE DELETE ON transfer
    BEGIN SELECT RAISE (ABORT, 'a transfer is never deleted'); END;
"""


_KEYS_AT_ONCE = 500  # in one statement


class ConstraintViolated(Exception):
    """A constraint of the database said no: the last line of defence was needed."""


class LedgerStore(Protocol):
    def transaction(self) -> AbstractContextManager[None]:
        """A transaction: everything written inside is stored, or none of it."""
        ...

    def insert(self, table: Table[R], *records: R) -> None:
        """
        Insert rows. Raises `ConstraintViolated` when a constraint forbids it, or a key exists.
        """
        ...

    def update(self, table: Table[R], *records: R) -> None: ...

    def get(self, table: Table[R], key: Value) -> R | None: ...

    def get_many(self, table: Table[R], keys: Sequence[str]) -> list[R]:
        """The rows of these keys that exist, in any order."""
        ...

    def find(self, table: Table[R], where: str = "", *args: Value, limit: int = 0) -> list[R]:
        """The matching rows in order of the key. `where` is SQL with `?` for each of `args`."""
        ...

    def rows(self, table: Table[R]) -> Iterator[Row]:
        """Every row, undecoded, in order of the key: for verification."""
        ...

    def last(self, table: Table[R]) -> R | None:
        """The record with the greatest key."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """A transaction in which all reads see the same state."""
        ...

    def damage(self) -> str:
        """The damage that the database itself finds in its files; "" if none."""
        ...

    def close(self) -> None: ...


class SqliteStore:
    def __init__(self, path: Path, *, durable: bool = True, read_only: bool = False) -> None:
        self._db = Database(path, durable=durable, read_only=read_only)
        if not read_only:
            self._bring_up_to_date()
        if (version := self._version()) != SCHEMA_VERSION:
            self._db.close()
            raise UserError(other_version(str(path), version))

    def _bring_up_to_date(self) -> None:
        if self._version() == SCHEMA_VERSION:
            return
        with self._db.transaction():
            version = self._version()  # somebody else may have done it while we waited
            changes = TABLES + _TRIGGERS if version == 0 else migrations(version)
            if changes:
                self._db.execute(changes + SQLITE_TRIGGERS)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def __repr__(self) -> str:
        return f"<SqliteStore {self._db.path.name}>"

    def transaction(self) -> AbstractContextManager[None]:
        return self._db.transaction()

    def reading(self) -> AbstractContextManager[None]:
        return self._db.reading()

    def insert(self, table: Table[R], *records: R) -> None:
        marks = ",".join("?" * len(table.columns))
        for record in records:
            self._write(f"INSERT INTO {table.name} VALUES ({marks})", table.row(record))

    def update(self, table: Table[R], *records: R) -> None:
        sql = update_statement(table)
        for record in records:
            row = table.row(record)
            self._write(sql, (*row[1:], row[0]))

    def get(self, table: Table[R], key: Value) -> R | None:
        sql = f"SELECT * FROM {table.name} WHERE {table.key} = ?"
        return next((table.record_of(row) for row in self._db.execute(sql, (key,))), None)

    def get_many(self, table: Table[R], keys: Sequence[str]) -> list[R]:
        records: list[R] = []
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            batch = keys[first : first + _KEYS_AT_ONCE]
            marks = ",".join("?" * len(batch))
            sql = f"SELECT * FROM {table.name} WHERE {table.key} IN ({marks})"
            records += [table.record_of(row) for row in self._db.execute(sql, batch)]
        return records

    def find(self, table: Table[R], where: str = "", *args: Value, limit: int = 0) -> list[R]:
        sql = find_statement(table, where, limit)
        return [table.record_of(row) for row in self._db.execute(sql, args)]

    def rows(self, table: Table[R]) -> Iterator[Row]:
        return self._db.scan(f"SELECT * FROM {table.name} ORDER BY {table.key}")

    def last(self, table: Table[R]) -> R | None:
        sql = f"SELECT * FROM {table.name} ORDER BY {table.key} DESC LIMIT 1"
        return next((table.record_of(row) for row in self._db.execute(sql)), None)

    def damage(self) -> str:
        return self._db.damage()

    def close(self) -> None:
        self._db.close()

    def _version(self) -> int:
        version: int = self._db.execute("PRAGMA user_version")[0][0]
        return version

    def _write(self, sql: str, row: Row) -> None:
        try:
            self._db.execute(sql, row)
        except ConstraintError as error:
            raise ConstraintViolated(str(error)) from error


def other_version(location: str, version: int) -> str:
    if migrations(version) is None:
        return f"{location} is not a ledger of this version (schema {version})"
    return f"{location} is a ledger of schema {version}: start Bidplane once to bring it up to date"


def update_statement(table: Table[R]) -> str:
    changes = ",".join(f"{column} = ?" for column in table.columns[1:])
    return f"UPDATE {table.name} SET {changes} WHERE {table.key} = ?"


def find_statement(table: Table[R], where: str, limit: int) -> str:
    sql = f"SELECT * FROM {table.name}"
    sql += f" WHERE {where}" if where else ""
    sql += f" ORDER BY {table.key}"
    return sql + (f" LIMIT {limit}" if limit else "")
