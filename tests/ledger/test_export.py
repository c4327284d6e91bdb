"""Exports add up: what comes out is what the accounts have, whatever agents wrote in it."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.cli.account import ledger as cli
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.errors import UserError
from bidplane.ledger import Ledger, leases, wallets
from bidplane.ledger.records import Account, AccountKind, lease_id, wallet_of
from bidplane.ledger.reports import export
from bidplane.ledger.store import LedgerStore

from .conftest import Place
from .words import CREDIT, open_wallet, win

AT = 1_800_000_000_000


def fill(ledger: Ledger, memo: str = "for the demo") -> None:
    open_wallet(ledger, "u1", at=AT)
    open_wallet(ledger, "u2", credits=1, at=AT)
    with ledger.commit(AT + 1000) as commit:
        leases.claim(commit, win(commit, "b1").id)
        wallets.transfer(
            commit,
            sender="u1",
            receiver="u2",
            amount=1_234_567,
            cap=9 * CREDIT,
            key="k",
            memo=memo,
        )
    with ledger.commit(AT + 90_000_000) as commit:
        leases.release(commit, lease_id("b1"), LeaseEvent.LEFT)


def balances(store: LedgerStore) -> dict[str, int]:
    return {account.id: account.posted for account in Ledger(store).accounts() if account.posted}


def test_csv_adds_up_per_account_and_in_all(store: LedgerStore) -> None:
    fill(Ledger(store))
    text = io.StringIO()
    export.write_csv(store, text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["account"]] += int(row["amount"])
    assert {account: amount for account, amount in sums.items() if amount} == balances(store)
    assert sum(sums.values()) == 0
    assert [int(row["sequence"]) for row in rows] == sorted(int(row["sequence"]) for row in rows)


def test_a_formula_in_a_memo_stays_text(store: LedgerStore) -> None:
    fill(Ledger(store), memo='=HYPERLINK("http://x")')
    text = io.StringIO()
    export.write_csv(store, text)
    memos = {row["memo"] for row in csv.DictReader(io.StringIO(text.getvalue()))}
    assert '\'=HYPERLINK("http://x")' in memos


def test_parquet_adds_up(store: LedgerStore, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    fill(Ledger(store))
    export.write_parquet(store, tmp_path / "p.parquet")
    table = parquet.read_table(tmp_path / "p.parquet")
    sums: Counter[str] = Counter()
    for account, amount in zip(
        table["account"].to_pylist(), table["amount"].to_pylist(), strict=True
    ):
        sums[account] += amount
    assert {account: amount for account, amount in sums.items() if amount} == balances(store)
    assert table["at"].to_pylist()[0] == datetime.fromtimestamp(AT / 1000, tz=UTC)


def test_parquet_without_pyarrow_is_a_clear_error(
    store: LedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"bidplane\[parquet\]"):
        export.write_parquet(store, tmp_path / "p.parquet")


class Book:
    """As much of beancount's language as is written, read strictly."""

    ACCOUNT = r"(?:Assets|Equity):[A-Z0-9][A-Za-z0-9-]*(?::[A-Z0-9][A-Za-z0-9-]*)*"

    def __init__(self, text: str) -> None:
        self.open: dict[str, str] = {}
        self.sums: dict[str, Decimal] = {}
        self.asserted: dict[str, Decimal] = {}
        self._pending = Decimal(0)
        self._day = ""
        for line in text.splitlines():
            self._line(line)
        assert self._pending == 0

    def _line(self, line: str) -> None:
        if opened := re.fullmatch(rf"(\S{{10}}) open ({self.ACCOUNT}) CREDIT", line):
            assert opened[2] not in self.open
            self.open[opened[2]] = opened[1]
            self.sums[opened[2]] = Decimal(0)
        elif moved := re.fullmatch(rf"  ({self.ACCOUNT})  (-?\d+\.\d{{6}}) CREDIT", line):
            assert self.open[moved[1]] <= self._day
            self.sums[moved[1]] += Decimal(moved[2])
            self._pending += Decimal(moved[2])
        elif sum_ := re.fullmatch(
            rf"(\S{{10}}) balance ({self.ACCOUNT})  (-?\d+\.\d{{6}}) CREDIT", line
        ):
            assert sum_[1] > self._day
            self.asserted[sum_[2]] = Decimal(sum_[3])
        elif begun := re.fullmatch(r'(\S{10}) \* "[^"]*" "(?:[^"\\]|\\.)*"', line):
            assert self._pending == 0
            self._day = begun[1]
        else:
            assert line == "" or line.startswith("option "), line


def test_beancount_balances(store: LedgerStore) -> None:
    fill(Ledger(store), memo='a "quoted"\nmemo \\')
    text = io.StringIO()
    export.write_beancount(store, text)
    book = Book(text.getvalue())
    assert book.sums == book.asserted
    assert sum(book.sums.values()) == 0
    has = {a.id: Decimal(a.posted) / CREDIT for a in Ledger(store).accounts()}
    assert sorted(book.sums.values()) == sorted(has.values())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(min_size=1), min_size=2, max_size=2, unique=True))
def test_two_accounts_never_become_one(uids: list[str]) -> None:
    names = [
        export.beancount_name(Account(id=wallet_of(uid), kind=AccountKind.WALLET)) for uid in uids
    ]
    assert len(set(names)) == 2
    assert all(re.fullmatch(Book.ACCOUNT, name) for name in names)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(memo=st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_whatever_an_agent_writes_the_exports_add_up(
    fresh: Callable[[], LedgerStore], memo: str
) -> None:
    store = fresh()
    fill(Ledger(store), memo=memo)
    text = io.StringIO()
    export.write_beancount(store, text)
    book = Book(text.getvalue())
    assert book.sums == book.asserted
    text = io.StringIO()
    export.write_csv(store, text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue(), newline="")))
    assert sum(int(row["amount"]) for row in rows) == 0
    store.close()


def test_the_command_writes_a_whole_file_or_says_why_not(place: Place, tmp_path: Path) -> None:
    ledger = Ledger.open(place, durable=False)
    fill(ledger)
    ledger.close()
    for format in ("csv", "beancount", "parquet"):
        cli.export(format=format, output=tmp_path / format, ledger=str(place))  # type: ignore[arg-type]
        assert (tmp_path / format).stat().st_size > 100
    assert sorted(p.name for p in tmp_path.iterdir()) == ["beancount", "csv", "parquet"]
    with pytest.raises(UserError, match="--output"):
        cli.export(format="parquet", ledger=str(place))
    with pytest.raises(UserError, match="cannot write"):
        cli.export(format="csv", output=tmp_path / "no" / "such", ledger=str(place))
