"""`verify` finds what was tampered with, and names it."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import psycopg
import pytest

from bidplane.bench.support.postgres import Server
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.errors import UserError
from bidplane.ledger import Ledger, leases, verify, wallets
from bidplane.ledger.records import lease_id

from .conftest import Place
from .words import open_wallet, win


@pytest.fixture
def path(place: Place) -> Place:
    """A small ledger with a bit of everything in it, in each database."""
    path = place
    ledger = Ledger.open(path)
    open_wallet(ledger)
    with ledger.commit(1000) as commit:
        leases.claim(commit, win(commit, "b1").id)
        win(commit, "b2", first=1)
        commit.add_round(input=b"{}", result=b"{}")
    with ledger.commit(20_000) as commit:
        leases.release(commit, lease_id("b1"), LeaseEvent.LEFT)
    with ledger.commit(30_000) as commit:
        wallets.fund(commit, uid="u1", amount=5, key="more")
    ledger.close()
    return path


def tamper(path: Place, sql: str) -> None:
    if isinstance(path, str):
        with psycopg.connect(path, autocommit=True) as postgres:
            postgres.execute("DROP TRIGGER transfer_is_append_only ON transfer")
            postgres.execute(re.sub(r"x'(\w+)'", r"'\\x\1'::bytea", sql))
        return
    connection = apsw.Connection(str(path))
    connection.execute("DROP TRIGGER transfer_is_append_only")
    connection.execute("DROP TRIGGER transfer_is_never_deleted")
    connection.execute(sql)
    connection.close()


def test_a_sound_ledger_is_sound(path: Place) -> None:
    report = verify(path)
    assert report.is_sound, report.problem
    assert (report.commits, report.accounts, report.leases, report.transfers) == (4, 4, 2, 5)


def test_it_can_be_verified_while_it_is_written(path: Place) -> None:
    ledger = Ledger.open(path)
    with ledger.commit(40_000) as commit:
        wallets.fund(commit, uid="u1", amount=5, key="even more")
        assert verify(path).commits == 4
    assert verify(path).commits == 5
    ledger.close()


B1, B2 = lease_id("b1"), lease_id("b2")


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            "UPDATE transfer SET amount = amount - 1 WHERE kind = 'rent'",
            f"transfer rent/{B1}/1: amount is 18049, commit 3 wrote 18050",
        ),
        (
            "DELETE FROM transfer WHERE kind = 'levy'",
            f"transfer levy/{B1}/1: commit 3 wrote it and it is gone",
        ),
        (
            "INSERT INTO transfer SELECT 'gift', kind, debit, credit, 7, at, lease, memo, sequence"
            " FROM transfer WHERE kind = 'seed'",
            "transfer gift: no commit wrote it",
        ),
        (
            "UPDATE account SET posted = posted + 1 WHERE id = 'wallet/u1'",
            "account wallet/u1: posted is 9981006, commit 4 wrote 9981005",
        ),
        (
            "UPDATE hold SET amount = 0 WHERE state = 'open'",
            f"hold {B2}/1: amount is 0, commit 2 wrote 60000",
        ),
        (
            "UPDATE lease SET phase = 'Pending' WHERE phase = 'Released'",
            f"lease {B1}: phase is 'Pending', commit 3 wrote 'Released'",
        ),
        ("UPDATE round SET result = x'7b7d20'", "round 1: result is 'sha256:"),
        (
            "UPDATE journal SET payload = x'5b5d' WHERE sequence = 2",
            "journal 2: its hash does not follow",
        ),
        ("UPDATE journal SET at = at + 1 WHERE sequence = 3", "journal 3: its hash does not"),
        ("DELETE FROM journal WHERE sequence = 2", "journal 3: journal 2 is missing before it"),
        ("DELETE FROM journal WHERE sequence = 4", "account mint: posted is"),
    ],
)
def test_the_first_broken_row_is_named(path: Place, sql: str, problem: str) -> None:
    tamper(path, sql)
    report = verify(path)
    assert not report.is_sound
    assert report.problem.startswith(problem)


def test_a_journal_forged_with_its_hashes_must_still_keep_the_rules(place: Place) -> None:
    """Two leases on one device, written by somebody who has the code and the file."""
    path = place
    ledger = Ledger.open(path)
    open_wallet(ledger)
    with ledger.commit(1000) as commit:
        win(commit, "b1", gpus=2)
        win(commit, "b2", first=1)
    ledger.close()
    both = ", ".join(sorted((B1, B2)))
    assert verify(path).problem == f"journal 2: device n1/gpu-1 is in more than one lease: {both}"


def test_what_is_not_a_ledger_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot open"):
        verify(tmp_path / "nothing.db")
    (tmp_path / "text.db").write_text("this is not a database, it only looks like a file" * 99)
    with pytest.raises(UserError):
        verify(tmp_path / "text.db")


def test_a_postgres_without_a_ledger_is_a_clear_error(server: Server) -> None:
    with pytest.raises(UserError, match="no ledger in that PostgreSQL database"):
        verify(server.dsn("never_opened"))
    with pytest.raises(UserError, match="cannot open the PostgreSQL ledger"):
        verify("postgresql:///postgres?host=/nowhere")
