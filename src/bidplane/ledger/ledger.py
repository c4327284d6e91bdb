"""The ledger: the one truth about money and leases. One process writes it: the exchange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bidplane.api.lease import Phase
from bidplane.ledger.commit import Commit
from bidplane.ledger.records import (
    MINT,
    REVENUE,
    Account,
    AccountKind,
    Entry,
    Hold,
    Lease,
    LotPrice,
    Round,
    Transfer,
    TransferKind,
    lease_id,
)
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.stores import open_store
from bidplane.ledger.tables import ACCOUNT, HOLD, JOURNAL, LEASE, LOT, ROUND, TRANSFER
from bidplane.ledger.watermark import LedgerLost, Watermark, check_file
from bidplane.storage.chain import GENESIS

NOTHING_YET = Entry(sequence=0, at=0, payload=b"", hash=GENESIS)


class Ledger:
    def __init__(self, store: LedgerStore, mark: Watermark | None = None) -> None:
        self._store = store
        self._mark = mark

    @classmethod
    def open(
        cls,
        location: Path | str,
        *,
        durable: bool = True,
        read_only: bool = False,
        mark: Path | None = None,
    ) -> Ledger:
        """
        Open the ledger in a file, or behind `postgresql://…`; create it if it does not exist.
        `mark`: the file that records how many commits it must have. Raises `LedgerLost` if it has
        fewer.
        """
        if mark is None:
            return cls(open_store(location, durable=durable, read_only=read_only))
        if isinstance(location, Path):
            check_file(location, mark)
        watermark = Watermark(mark)
        ledger = cls(open_store(location, durable=durable, read_only=read_only), watermark)
        at_mark = watermark.mark.sequence if watermark.mark else 0
        try:
            watermark.check(
                display_location(location), ledger.head, ledger._store.get(JOURNAL, at_mark)
            )
        except LedgerLost:
            ledger.close()
            raise
        return ledger

    @property
    def accepts_loss(self) -> bool:
        """True if the operator said to go on, though the host shows later commits."""
        return bool(self._mark and self._mark.mark and self._mark.mark.accepts_loss)

    def accept_loss(self, *, accepts: bool = True) -> None:
        """
        Go on from the commits that exist; with `accepts=False`, end that once the host shows no
        later ones.
        """
        if self._mark is not None:
            self._mark.accept_loss(self.head, accepts=accepts)

    def __repr__(self) -> str:
        return f"<Ledger at {self.head.sequence}>"

    def close(self) -> None:
        self._store.close()
        if self._mark is not None:
            self._mark.close()

    @contextmanager
    def commit(self, at: int) -> Iterator[Commit]:
        """
        Open a transaction. It is written when the block ends, if it changed anything; an exception
        inside undoes all of it.
        """
        with self._store.transaction():
            commit = Commit(self._store, self.head, at)
            if commit.account(MINT) is None:
                commit.open_account(Account(id=MINT, kind=AccountKind.MINT))
                commit.open_account(Account(id=REVENUE, kind=AccountKind.REVENUE))
            yield commit
            entry = None if commit.is_empty else commit.write()
        if entry is not None and self._mark is not None:
            self._mark.write(entry)

    @property
    def head(self) -> Entry:
        return self._store.last(JOURNAL) or NOTHING_YET

    def account(self, account: str) -> Account | None:
        return self._store.get(ACCOUNT, account)

    def accounts(self) -> list[Account]:
        return self._store.find(ACCOUNT)

    def wallets_named(self, agent: str) -> list[Account]:
        """Every wallet agents of that name have had, oldest first."""
        accounts = self._store.find(
            ACCOUNT, "kind = ? AND name = ?", AccountKind.WALLET.value, agent
        )
        return sorted(accounts, key=lambda account: (account.opened_at, account.sequence))

    def lease(self, lease: str) -> Lease | None:
        return self._store.get(LEASE, lease)

    def lease_of_bid(self, bid_uid: str) -> Lease | None:
        return self._store.get(LEASE, lease_id(bid_uid))

    def live_leases(self) -> list[Lease]:
        return self._store.find(LEASE, "phase <> ?", Phase.RELEASED.value)

    def leases_won_after(self, at: int) -> list[Lease]:
        """Every lease won after a time in milliseconds, in any phase. Reads the whole table."""
        return self._store.find(LEASE, "won_at > ?", at)

    def hold(self, hold: str) -> Hold | None:
        return self._store.get(HOLD, hold)

    def leases_of(self, wallet: str) -> list[Lease]:
        return self._store.find(LEASE, "wallet = ?", wallet)

    def transfers_of(self, account: str) -> list[Transfer]:
        transfers = self._store.find(TRANSFER, "debit = ? OR credit = ?", account, account)
        order = list(TransferKind)  # as a reader expects them: rent, then what follows from it
        return sorted(transfers, key=lambda t: (t.sequence, order.index(t.kind), t.id))

    def lots(self) -> list[LotPrice]:
        return self._store.find(LOT)

    def rounds_after(self, number: int, *, limit: int = 100) -> list[Round]:
        return self._store.find(ROUND, "number > ?", number, limit=limit)

    @property
    def last_round(self) -> int:
        newest = self._store.last(ROUND)
        return newest.number if newest else 0


def display_location(location: Path | str) -> str:
    """The location of the ledger for messages, without the secrets of a DSN."""
    return str(location) if isinstance(location, Path) else "the PostgreSQL ledger"
