"""The choice of a ledger's database, by the form of its location."""

from __future__ import annotations

from pathlib import Path

from bidplane.ledger.postgres import PostgresStore
from bidplane.ledger.store import LedgerStore, SqliteStore
from bidplane.storage.postgres import is_dsn


def open_store(
    location: Path | str, *, durable: bool = True, read_only: bool = False
) -> LedgerStore:
    """Open a store. `location` is a file for SQLite, `postgresql://…` for PostgreSQL."""
    if isinstance(location, str) and is_dsn(location):
        return PostgresStore(location, durable=durable, read_only=read_only)
    return SqliteStore(Path(location), durable=durable, read_only=read_only)
