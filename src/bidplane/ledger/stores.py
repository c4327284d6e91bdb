"""Which database a ledger is in: told by how its place is written."""

from __future__ import annotations

from pathlib import Path

from bidplane.ledger.postgres import PostgresStore
from bidplane.ledger.store import SqliteStore, Store
from bidplane.storage.postgres import is_dsn


def open_store(where: Path | str, *, durable: bool = True, read_only: bool = False) -> Store:
    """`where` is a file for SQLite, `postgresql://…` for PostgreSQL."""
    if isinstance(where, str) and is_dsn(where):
        return PostgresStore(where, durable=durable, read_only=read_only)
    return SqliteStore(Path(where), durable=durable, read_only=read_only)
