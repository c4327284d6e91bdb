"""Who paid what: every micro-credit that moved for a lease is in exactly one line."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.cli.account.report import grouping, page, table_rows
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.errors import UserError
from bidplane.ledger import leases, wallets
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.reports.chargeback import Chargeback, chargeback
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.stores import open_store

from .words import open_wallet, win

DAY = 24 * 3600 * 1000


def report(store: LedgerStore, begin: int = 0, end: int = 2**62) -> Chargeback:
    return chargeback(
        store,
        begin=begin,
        end=end,
        group=lambda account: (account.owner, account.name),
        day=lambda at: f"day {at // DAY}",
    )


def use(ledger: Ledger, bid: str, uid: str, at: int, seconds: int, *, displaced: bool) -> None:
    with ledger.commit(at) as commit:
        id = win(commit, bid, uid=uid).id
        leases.claim(commit, id)
    with ledger.commit(at + 1000 * seconds) as commit:
        if displaced:
            leases.notice(commit, id, LeaseEvent.OUTBID, compensation=min(700, seconds * 100))
        leases.release(commit, id, LeaseEvent.LEFT)


def test_lines_add_up_and_a_period_is_half_open(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger, "u1")
    open_wallet(ledger, "u2")
    use(ledger, "b1", "u1", 1000, 30, displaced=False)
    use(ledger, "b2", "u2", DAY, 50, displaced=True)
    found = report(store)
    assert [share.group for share in found.shares] == [("ann", "u2"), ("ann", "u1")]
    assert found.total == found.received > 0
    assert found.shares[0].compensation == 700
    assert found.shares[1].leases == 1
    cut = DAY + 50_000  # when the second was billed
    assert [s.group[1] for s in report(store, 0, cut).shares] == ["u1"]
    assert report(store, 0, cut).total + report(store, cut).total == found.total
    html = page(found, ["owner", "agent", "net"], [["<b>", "u1", "1"]], 2, "always")
    assert "<svg" in html
    assert "<td><b></td>" not in html


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 59), st.booleans()), min_size=1, max_size=12
    ),
    st.integers(0, 12),
)
def test_any_cut_of_any_books_adds_up(uses: list[tuple[int, int, bool]], cut: int) -> None:
    store = open_store(":memory:", durable=False)
    try:
        ledger = Ledger(store)
        for number in range(3):
            open_wallet(ledger, f"u{number}")
        for number, (who, seconds, displaced) in enumerate(uses):
            at = 1000 + number * 100_000
            use(ledger, f"b{number}", f"u{who}", at, seconds, displaced=displaced)
        whole, middle = report(store), cut * 100_000
        assert whole.total == whole.received
        assert whole.total == sum(sum(s.daily.values()) for s in whole.shares)
        assert report(store, 0, middle).total + report(store, middle).total == whole.total
    finally:
        store.close()


def test_team_and_labels_outlive_their_agent(ledger: Ledger, store: LedgerStore) -> None:
    def told(team: str, **marks: str) -> None:
        text = msgspec.json.encode(marks).decode()
        with ledger.commit(500) as commit:
            wallets.open_wallet(commit, uid="u1", name="u1", owner="ann", team=team, marks=text)

    open_wallet(ledger, "u1")
    group = grouping(["agent", "team", "label:project"])
    (account,) = ledger.wallets_named("u1")
    assert group(account) == ("u1", "(not known)", "(not known)"), "nobody has said so yet"
    told("vision", project="birds")
    told("speech")
    told("vision", project="fish")
    use(ledger, "b1", "u1", 1000, 30, displaced=False)
    with ledger.commit(100_000) as commit:
        wallets.close_wallet(commit, uid="u1")
    told("another", project="another")  # who is gone is no longer told anything
    found = chargeback(store, begin=0, end=2**62, group=group, day=str)
    assert [share.group for share in found.shares] == [("u1", "vision", "fish")]
    with pytest.raises(UserError, match="use agent, team, owner or label:KEY"):
        grouping(["colour"])


def test_two_columns_are_in_the_total_of_a_ledger_without_leases(store: LedgerStore) -> None:
    head, rows = table_rows(report(store), ["owner", "agent"], None, "EUR")
    assert rows == [["total", "", "0", "0.00", "0.00", "0.00", "0.00", "0.00"]]
    assert len(rows[0]) == 2 + len(head)
