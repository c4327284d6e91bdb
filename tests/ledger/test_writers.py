"""Several writers, one chain: none loses what another wrote, on each database."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from bidplane.bench.support.postgres import Server
from bidplane.errors import UserError
from bidplane.ledger import Ledger, verify, wallets
from bidplane.ledger.postgres import PostgresStore
from bidplane.ledger.records import wallet_of
from bidplane.ledger.store import ConstraintViolated
from bidplane.ledger.tables import ACCOUNT
from bidplane.ledger.wallets import Funding, Moving

from .conftest import Place
from .words import CREDIT, balance, open_wallet

WRITERS, COMMITS = 4, 25


def run_all(*works: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_writers_take_turns_and_none_is_lost(place: Place) -> None:
    first = Ledger.open(place, durable=False)
    open_wallet(first, credits=0 + 1)

    def write(writer: int) -> None:
        ledger = Ledger.open(place, durable=False)
        for number in range(COMMITS):
            with ledger.commit(1000 + number) as commit:
                wallets.fund(commit, uid="u1", amount=1, key=f"{writer}/{number}")
        ledger.close()

    run_all(*(lambda writer=writer: write(writer) for writer in range(WRITERS)))
    report = verify(place)
    assert report.is_sound, report.problem
    assert report.commits == 1 + WRITERS * COMMITS
    assert balance(first) == CREDIT + WRITERS * COMMITS
    first.close()


def test_one_key_used_by_all_at_once_pays_once(place: Place) -> None:
    first = Ledger.open(place, durable=False)
    open_wallet(first, credits=1)

    def write() -> None:
        ledger = Ledger.open(place, durable=False)
        with ledger.commit(1000) as commit:
            wallets.fund(commit, uid="u1", amount=7, key="the same")
        ledger.close()

    run_all(*[write] * WRITERS)
    assert balance(first) == CREDIT + 7
    assert verify(place).is_sound
    first.close()


def test_a_ledger_is_made_once_by_many_who_open_it(place: Place) -> None:
    run_all(*[lambda: Ledger.open(place, durable=False).close()] * WRITERS)
    assert verify(place).commits == 0


def test_a_reader_sees_one_moment_while_others_write(place: Place) -> None:
    ledger, reader = Ledger.open(place, durable=False), Ledger.open(place, read_only=True)
    open_wallet(ledger, credits=1)
    with reader._store.reading():
        before = balance(reader)
        with ledger.commit(1000) as commit:
            wallets.fund(commit, uid="u1", amount=5, key="meanwhile")
        assert balance(reader) == before
    assert balance(reader) == before + 5
    ledger.close()
    reader.close()


def test_a_connection_that_broke_is_made_anew_for_the_next_commit(server: Server) -> None:
    dsn = server.dsn("broken_connection")
    ledger, other = Ledger.open(dsn), PostgresStore(dsn)
    open_wallet(ledger, credits=1)
    with pytest.raises(Exception, match="terminat"), ledger.commit(1000) as commit:  # noqa: PT012
        wallets.fund(commit, uid="u1", amount=5, key="lost")
        other._db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND usename = 'bidplane'"
        )
    with ledger.commit(2000) as commit:
        wallets.fund(commit, uid="u1", amount=3, key="kept")
    assert balance(ledger) == CREDIT + 3
    assert verify(dsn).is_sound
    ledger.close()
    other.close()


def test_a_reader_cannot_write(place: Place) -> None:
    Ledger.open(place, durable=False).close()
    reader = Ledger.open(place, read_only=True)
    with pytest.raises(Exception, match=r"read-?only"), reader.commit(0):
        pass
    reader.close()


def test_a_text_postgres_cannot_keep_is_refused_and_nothing_is_written(server: Server) -> None:
    store = PostgresStore(server.dsn("nul"))
    ledger = Ledger(store)
    open_wallet(ledger, credits=1)
    with pytest.raises(ConstraintViolated), ledger.commit(1000) as commit:
        wallets.open_wallet(commit, uid="u2", name="nul \0 byte", owner="ann")
    assert balance(ledger) == CREDIT
    found = store.get_many(ACCOUNT, [wallet_of("u1"), wallet_of("nobody")])
    assert [account.id for account in found] == [wallet_of("u1")]
    store.close()


def test_a_ledger_of_another_version_is_refused(server: Server) -> None:
    dsn = server.dsn("another_version")
    store = PostgresStore(dsn)
    store._db.execute("UPDATE ledger_version SET version = 99")
    store.close()
    with pytest.raises(UserError, match="schema 99"):
        PostgresStore(dsn)


def test_a_memo_no_database_can_keep_is_refused_by_name(place: Place) -> None:
    ledger = Ledger.open(place, durable=False)
    open_wallet(ledger)
    open_wallet(ledger, "u2")
    head = ledger.head
    for text in ("a\x00b", "\ud800"):
        for key, memo in ((text, ""), ("k", text)):
            with ledger.commit(1000) as commit:
                funded = wallets.fund(commit, uid="u1", amount=1, key=key, memo=memo)
                moved = wallets.transfer(
                    commit, sender="u1", receiver="u2", amount=1, cap=10**9, key=key, memo=memo
                )
            assert (funded, moved) == (Funding.NOT_A_TEXT, Moving.NOT_A_TEXT)
    assert ledger.head == head
    ledger.close()
