"""A ledger of an older schema is brought up to date when it is opened, and stays sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bidplane.bench.support import postgres
from bidplane.errors import UserError
from bidplane.ledger import Ledger, verify
from bidplane.ledger.postgres import PostgresStore, translated
from bidplane.ledger.tables import JOURNALLED, SCHEMA_VERSION, TABLES
from bidplane.storage.postgres import PostgresDatabase
from bidplane.storage.sqlite import Database

# What came after schema 3.
NEW = {
    "lease": (
        "budget",
        "work",
        "moved_from",
        "up_at",
        "pools",
        "idle_since",
        "origin",
        "plane_namespace",
        "displacement",
        "beside",
        "gpu_weight",
    ),
    "lot": ("gpu_weight",),
    "account": ("starts", "start_ms", "team", "marks"),
}
OLD = Path(__file__).parent / "old"  # as the versions of their time wrote them


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    database = Database(path)
    database.execute((OLD / "ledger-3.sql").read_text())
    database.close()
    return path


def test_it_goes_on_where_the_old_one_was(old: Path) -> None:
    ledger = Ledger.open(old)
    head, lease = ledger.head, ledger.lease_of_bid("b1")
    assert lease is not None
    assert (lease.phase, lease.budget, lease.work, lease.up_at) == ("Active", 0, "", 0)
    assert (lease.pools, lease.pool_names) == ((), (lease.pool,))
    assert verify(old).is_sound, "what the old one wrote no longer adds up"
    with ledger.commit(head.at + 1000) as commit:
        commit.change_lease(lease)
    ledger.close()
    report = verify(old)
    assert report.is_sound, report.problem
    assert report.commits == head.sequence + 1


def test_who_only_reads_changes_nothing_and_says_what_to_do(old: Path) -> None:
    before = old.read_bytes()
    with pytest.raises(UserError, match="schema 3: start Bidplane once"):
        Ledger.open(old, read_only=True)
    assert old.read_bytes() == before


def test_a_newer_one_is_left_alone(old: Path) -> None:
    database = Database(old)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    with pytest.raises(UserError, match="not a ledger of this version"):
        Ledger.open(old)


def test_it_is_then_the_same_as_a_new_one(old: Path, tmp_path: Path) -> None:
    Ledger.open(old).close()
    Ledger.open(tmp_path / "new.db").close()
    shapes = []
    for path in (old, tmp_path / "new.db"):
        database = Database(path)
        shapes.append(
            [
                [(column[1:4]) for column in database.execute(f"PRAGMA table_info({table})")]
                for table in (*JOURNALLED, "audit")
            ]
        )
        database.close()
    assert shapes[0] == shapes[1]


@pytest.fixture
def dsn() -> Iterator[str]:
    try:
        with postgres.Server(durable=False) as server:
            yield server.dsn("ledger")
    except postgres.NoPostgres as error:
        pytest.skip(str(error))


def test_postgresql_too(dsn: str) -> None:
    """Its tables as they were: the new columns taken away, which no journal row knows yet."""
    database = PostgresDatabase(dsn)
    database.execute(translated(TABLES))
    for table, columns in NEW.items():
        for column in columns:
            database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    database.execute("DROP TABLE audit")
    database.execute("CREATE TABLE ledger_version (version BIGINT NOT NULL)")
    database.execute("INSERT INTO ledger_version VALUES (3)")
    database.close()
    with pytest.raises(UserError, match="schema 3: start Bidplane once"):
        PostgresStore(dsn, read_only=True)
    ledger = Ledger.open(dsn)
    with ledger.commit(1000):
        pass
    ledger.close()
    assert verify(dsn).is_sound
