"""
A ledger store in memory, for simulations of weeks that need not be kept.

It answers as the databases do and keeps the same contract (`tests/ledger` runs on it, too), but a
record is not turned into a row and back, and the results of a query are kept up to date instead of
searched for. With `history=False` finished records are dropped: the journal and the rounds before
the last one, transfers except for their sums, closed holds. A simulated week would have gigabytes
of them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

from bidplane.ledger.records import (
    Account,
    AccountKind,
    Entry,
    Hold,
    HoldState,
    Record,
    Round,
    Transfer,
    TransferKind,
)
from bidplane.ledger.store import ConstraintViolated
from bidplane.ledger.tables import JOURNAL, ROUND, TRANSFER, Table
from bidplane.storage.values import Row, Value

R = TypeVar("R", bound=Record)
_TERM = re.compile(r"(\w+) (=|<>|>) (\?|\d+)")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    ">": operator.gt,
}
_Query = tuple[str, tuple[Value, ...]]  # a WHERE clause and its arguments


class _Selected(NamedTuple):
    """A query's condition and its present results."""

    test: Callable[[Record], bool]
    rows: dict[Value, Record]


class MemoryStore:
    """A ledger store whose tables are dictionaries."""

    def __init__(self, *, history: bool = True) -> None:
        self._history = history
        self._tables: dict[str, dict[Value, Record]] = {}
        self._last: dict[str, Record] = {}
        self.moved: dict[TransferKind, int] = {}  # micro-credits transferred, by kind
        # Queries repeat: their results are kept up to date.
        self._queries: dict[str, dict[_Query, _Selected]] = {}  # by table
        self._undo: list[tuple[Table[Any], Value, Record | None]] | None = None

    def __repr__(self) -> str:
        rows = sum(map(len, self._tables.values()))
        return f"<MemoryStore of {rows} rows>"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._undo = []
        last, moved = dict(self._last), dict(self.moved)
        try:
            yield
        except BaseException:
            for table, key, before in reversed(self._undo):
                self._put(table, key, before)
            self._last, self.moved = last, moved
            raise
        finally:
            self._undo = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        yield

    def insert(self, table: Table[R], *records: R) -> None:
        for record in records:
            key = getattr(record, table.key)
            if key in self._tables.setdefault(table.name, {}):
                raise ConstraintViolated(f"{table.name} {key} already exists")
            self._write(table, key, record)

    def update(self, table: Table[R], *records: R) -> None:
        if table is TRANSFER:
            raise ConstraintViolated("a transfer is never changed")
        for record in records:
            self._write(table, getattr(record, table.key), record)

    def get(self, table: Table[R], key: Value) -> R | None:
        return cast("R | None", self._tables.get(table.name, {}).get(key))

    def get_many(self, table: Table[R], keys: Sequence[str]) -> list[R]:
        return [record for key in keys if (record := self.get(table, key)) is not None]

    def find(self, table: Table[R], where: str = "", *args: Value, limit: int = 0) -> list[R]:
        rows = self._tables.get(table.name, {})
        if where and ">" in where.replace("<>", ""):  # its bound differs each time
            test = _test(where, args)
            rows = {key: record for key, record in rows.items() if test(record)}
        elif where:
            rows = self._selected(table, where, args)
        records = [rows[key] for key in sorted(rows)]  # type: ignore[type-var]
        return cast("list[R]", records[:limit] if limit else records)

    def rows(self, table: Table[R]) -> Iterator[Row]:
        return (table.row(record) for record in self.find(table))

    def last(self, table: Table[R]) -> R | None:
        return cast("R | None", self._last.get(table.name))

    def damage(self) -> str:
        return ""

    def close(self) -> None:
        self._tables.clear()
        self._queries.clear()

    def _selected(
        self, table: Table[R], where: str, args: tuple[Value, ...]
    ) -> dict[Value, Record]:
        """The present results of a query."""
        queries = self._queries.setdefault(table.name, {})
        if (where, args) not in queries:
            test, rows = _test(where, args), self._tables.get(table.name, {})
            matching = {key: record for key, record in rows.items() if test(record)}
            queries[where, args] = _Selected(test, matching)
        return queries[where, args].rows

    def _write(self, table: Table[R], key: Value, record: R) -> None:
        """Store a record, and remember the old one for a rollback."""
        _check(record)
        if table is JOURNAL or table is ROUND:
            self._last[table.name] = record
        if isinstance(record, Transfer):
            self.moved[record.kind] = self.moved.get(record.kind, 0) + record.amount
        if self._undo is not None:
            self._undo.append((table, key, self.get(table, key)))
        self._put(table, key, record if self._history or not _is_over(record) else None)

    def _put(self, table: Table[Any], key: Value, record: Record | None) -> None:
        """Store or remove a record, and update the results of all queries."""
        rows = self._tables.setdefault(table.name, {})
        if record is None:
            rows.pop(key, None)
        else:
            rows[key] = record
        for test, selected in self._queries.get(table.name, {}).values():
            if record is not None and test(record):
                selected[key] = record
            else:
                selected.pop(key, None)


def _test(where: str, args: tuple[Value, ...]) -> Callable[[Record], bool]:
    """
    The condition of a WHERE clause in the forms that the ledger uses: comparisons, all joined by
    AND or all by OR.
    """
    values = iter(args)
    every = " OR " not in where
    terms = []
    for part in re.split(r" AND | OR ", where):
        match = _TERM.fullmatch(part)
        if match is None:
            raise ValueError(f"{where!r} is not a condition that this store supports")
        column, sign, value = match.groups()
        terms.append((column, _OPERATORS[sign], next(values) if value == "?" else int(value)))

    def test(record: Record) -> bool:
        answers = (compare(getattr(record, column), value) for column, compare, value in terms)
        return all(answers) if every else any(answers)

    return test


def _is_over(record: Record) -> bool:
    """Return True for a record that nothing will read again."""
    if isinstance(record, Hold):
        return record.state is not HoldState.OPEN
    return isinstance(record, Transfer | Entry | Round)


def _check(record: Record) -> None:
    """Raise `ConstraintViolated` if the record breaks a constraint that a database would have."""
    if isinstance(record, Account) and (
        record.held < 0 or (record.kind is not AccountKind.MINT and record.posted < record.held)
    ):
        raise ConstraintViolated(f"no_overdraft: {record}")
