"""The ledger's tables, and how a record becomes a row and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from bidplane.ledger.audit.schema import AUDIT_TABLE
from bidplane.ledger.records import (
    Account,
    Entry,
    Hold,
    Lease,
    LotPrice,
    Record,
    Round,
    Transfer,
    in_todays_weight,
)
from bidplane.storage.chain import digest
from bidplane.storage.values import Row, Value

R = TypeVar("R", bound=Record)

# As SQLite reads it; `ledger/postgres.py` derives its own from it, so that the two agree.
TABLES = (
    """
CREATE TABLE account (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL,
    posted INTEGER NOT NULL, held INTEGER NOT NULL CHECK (held >= 0),
    is_open INTEGER NOT NULL, opened_at INTEGER NOT NULL, refills INTEGER NOT NULL,
    seeded INTEGER NOT NULL, sequence INTEGER NOT NULL,
    starts INTEGER NOT NULL DEFAULT 0, start_ms INTEGER NOT NULL DEFAULT 0,
    team TEXT NOT NULL DEFAULT '', marks TEXT NOT NULL DEFAULT '',
    CONSTRAINT no_overdraft CHECK (kind = 'mint' OR posted - held >= 0)
) STRICT;
CREATE TABLE transfer (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL,
    debit TEXT NOT NULL REFERENCES account (id), credit TEXT NOT NULL REFERENCES account (id),
    amount INTEGER NOT NULL CHECK (amount > 0), at INTEGER NOT NULL,
    lease TEXT NOT NULL, memo TEXT NOT NULL, sequence INTEGER NOT NULL,
    CHECK (debit <> credit)
) STRICT;
CREATE INDEX transfer_debit ON transfer (debit, sequence);
CREATE INDEX transfer_credit ON transfer (credit, sequence);
CREATE TABLE hold (
    id TEXT PRIMARY KEY, account TEXT NOT NULL REFERENCES account (id), lease TEXT NOT NULL,
    amount INTEGER NOT NULL CHECK (amount >= 0), state TEXT NOT NULL,
    captured INTEGER NOT NULL CHECK (captured BETWEEN 0 AND amount), sequence INTEGER NOT NULL
) STRICT;
CREATE INDEX hold_open ON hold (id) WHERE state = 'open';
CREATE TABLE lease (
    id TEXT PRIMARY KEY, bid_uid TEXT NOT NULL UNIQUE,
    bid_namespace TEXT NOT NULL, bid_name TEXT NOT NULL,
    wallet TEXT NOT NULL REFERENCES account (id), agent TEXT NOT NULL, owner TEXT NOT NULL,
    pool TEXT NOT NULL, domain TEXT NOT NULL, devices TEXT NOT NULL,
    max_price INTEGER NOT NULL, win_price INTEGER NOT NULL, win_base INTEGER NOT NULL,
    price INTEGER NOT NULL, weight INTEGER NOT NULL CHECK (weight > 0),
    minimum INTEGER NOT NULL,
    notice_seconds INTEGER NOT NULL, restart_seconds INTEGER NOT NULL,
    epoch_seconds INTEGER NOT NULL,
    phase TEXT NOT NULL, ready INTEGER NOT NULL, claimed INTEGER NOT NULL,
    waits_for TEXT NOT NULL,
    won_at INTEGER NOT NULL, ready_at INTEGER NOT NULL, active_at INTEGER NOT NULL,
    notice_at INTEGER NOT NULL, reclaim_at INTEGER NOT NULL, released_at INTEGER NOT NULL,
    reason TEXT NOT NULL, metered INTEGER NOT NULL, metered_rest INTEGER NOT NULL,
    charged_until INTEGER NOT NULL,
    settled_at INTEGER NOT NULL, charged INTEGER NOT NULL, compensation INTEGER NOT NULL,
    hold TEXT NOT NULL, holds INTEGER NOT NULL,
    age INTEGER NOT NULL, instant INTEGER NOT NULL, breached_at INTEGER NOT NULL,
    parts TEXT NOT NULL, levy_percent INTEGER NOT NULL,
    term_seconds INTEGER NOT NULL, term_until INTEGER NOT NULL, renews INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    budget INTEGER NOT NULL DEFAULT 0, work TEXT NOT NULL DEFAULT '',
    moved_from TEXT NOT NULL DEFAULT '', up_at INTEGER NOT NULL DEFAULT 0,
    pools TEXT NOT NULL DEFAULT '[]',
    idle_since INTEGER NOT NULL DEFAULT 0,
    origin TEXT NOT NULL DEFAULT 'bid', plane_namespace TEXT NOT NULL DEFAULT '',
    displacement INTEGER NOT NULL DEFAULT 0,
    beside TEXT NOT NULL DEFAULT '[]',
    gpu_weight INTEGER NOT NULL DEFAULT 56,
    CHECK (price <= max_price)
) STRICT;
CREATE INDEX lease_live ON lease (id) WHERE phase <> 'Released';
CREATE INDEX lease_sequence ON lease (sequence);
CREATE INDEX lease_wallet ON lease (wallet);
CREATE INDEX lease_work ON lease (wallet, work) WHERE work <> '';
CREATE TABLE lot (
    lot TEXT PRIMARY KEY, base INTEGER NOT NULL, posted INTEGER NOT NULL,
    devices INTEGER NOT NULL, leased INTEGER NOT NULL, used INTEGER NOT NULL,
    unserved INTEGER NOT NULL,
    at INTEGER NOT NULL, sequence INTEGER NOT NULL,
    gpu_weight INTEGER NOT NULL DEFAULT 56
) STRICT;
CREATE TABLE round (
    number INTEGER PRIMARY KEY, at INTEGER NOT NULL,
    input BLOB NOT NULL, result BLOB NOT NULL, sequence INTEGER NOT NULL
) STRICT;
CREATE TABLE journal (
    sequence INTEGER PRIMARY KEY, at INTEGER NOT NULL,
    payload BLOB NOT NULL, hash BLOB NOT NULL
) STRICT;
"""
    + AUDIT_TABLE
)


SCHEMA_VERSION = 12

# By version, what brings a ledger of the one before up to it. What the journal wrote stays as it
# was: rows of an older version are read with the defaults of the columns they lack.
MIGRATIONS = {
    4: """
ALTER TABLE lease ADD COLUMN budget INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lease ADD COLUMN work TEXT NOT NULL DEFAULT '';
ALTER TABLE lease ADD COLUMN moved_from TEXT NOT NULL DEFAULT '';
ALTER TABLE lease ADD COLUMN up_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX lease_work ON lease (wallet, work) WHERE work <> '';
""",
    5: """
ALTER TABLE account ADD COLUMN starts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE account ADD COLUMN start_ms INTEGER NOT NULL DEFAULT 0;
""",
    6: """
ALTER TABLE account ADD COLUMN team TEXT NOT NULL DEFAULT '';
ALTER TABLE account ADD COLUMN marks TEXT NOT NULL DEFAULT '';
""",
    7: """
ALTER TABLE lease ADD COLUMN pools TEXT NOT NULL DEFAULT '[]';
""",
    8: """
ALTER TABLE lease ADD COLUMN idle_since INTEGER NOT NULL DEFAULT 0;
""",
    9: """
ALTER TABLE lease ADD COLUMN origin TEXT NOT NULL DEFAULT 'bid';
ALTER TABLE lease ADD COLUMN plane_namespace TEXT NOT NULL DEFAULT '';
ALTER TABLE lease ADD COLUMN displacement INTEGER NOT NULL DEFAULT 0;
""",
    10: """
ALTER TABLE lease ADD COLUMN beside TEXT NOT NULL DEFAULT '[]';
""",
    11: AUDIT_TABLE,
    12: """
ALTER TABLE lease ADD COLUMN gpu_weight INTEGER NOT NULL DEFAULT 56;
ALTER TABLE lot ADD COLUMN gpu_weight INTEGER NOT NULL DEFAULT 56;
""",
}


def migrations(version: int) -> str | None:
    """The statements that bring a ledger of `version` up to date; None if nothing can."""
    steps = range(version + 1, SCHEMA_VERSION + 1)
    if version > SCHEMA_VERSION or any(step not in MIGRATIONS for step in steps):
        return None
    return "".join(MIGRATIONS[step] for step in steps)


class Table(Generic[R]):
    def __init__(self, name: str, record: type[R]) -> None:
        self.name = name
        self.record = record
        self.columns = record.__struct_fields__
        self.key = self.columns[0]
        hints = get_type_hints(record)
        self._types = [hints[column] for column in self.columns]
        self._as_json = [getattr(t, "__origin__", None) is tuple for t in self._types]
        # Of the columns that are not as the database has them: where, and how they are read.
        self._readers = [
            (i, _reader(type_, self._as_json[i]))
            for i, type_ in enumerate(self._types)
            if type_ not in (str, int, bytes)
        ]
        self._values = attrgetter(*self.columns)
        self._has_bytes = bytes in self._types

    def row(self, record: R) -> Row:
        values = list(self._values(record))
        for i, _ in self._readers:
            values[i] = _encode(values[i], self._as_json[i])
        return tuple(values)

    def record_of(self, row: Row) -> R:
        values: list[Any] = list(row)
        for i, read in self._readers:
            values[i] = read(values[i])
        record = self.record(**dict(zip(self.columns, values, strict=True)))
        return in_todays_weight(record)

    def whole(self, row: list[Value]) -> list[Value]:
        """A row of the journal, with the defaults of columns that came after it was written."""
        if len(row) == len(self.columns):
            return row
        later = list(zip(msgspec.structs.fields(self.record), self._as_json, strict=True))[
            len(row) :
        ]
        return [*row, *(_encode(field.default, as_json) for field, as_json in later)]

    def journalled(self, row: Row) -> Sequence[Value]:
        """The row as the journal repeats it. What is large is there by its hash."""
        if not self._has_bytes:
            return row
        return [f"sha256:{digest(value)}" if isinstance(value, bytes) else value for value in row]


def _reader(type_: Any, as_json: bool) -> Callable[[Any], Any]:
    if as_json:
        return msgspec.json.Decoder(type_).decode
    if type_ is bool:
        return bool
    return functools.partial(msgspec.convert, type=type_, strict=False)  # an enum


def _encode(value: Any, as_json: bool) -> Value:
    if as_json:
        return msgspec.json.encode(value).decode()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return str(value)  # an enum's value, not the enum
    result: Value = value
    return result


ACCOUNT = Table("account", Account)
TRANSFER = Table("transfer", Transfer)
HOLD = Table("hold", Hold)
LEASE = Table("lease", Lease)
LOT = Table("lot", LotPrice)
ROUND = Table("round", Round)
JOURNAL = Table("journal", Entry)

# Everything the journal covers, in the order a reader may rebuild it.
JOURNALLED: dict[str, Table[Any]] = {
    table.name: table for table in (ACCOUNT, TRANSFER, HOLD, LEASE, LOT, ROUND)
}
