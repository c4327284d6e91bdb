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
from bidplane.ledger.store import Store
from bidplane.ledger.stores import open_store
from bidplane.ledger.tables import ACCOUNT, HOLD, JOURNAL, LEASE, LOT, ROUND, TRANSFER
from bidplane.storage.chain import GENESIS

NOTHING_YET = Entry(sequence=0, at=0, payload=b"", hash=GENESIS)


class Ledger:
    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, where: Path | str, *, durable: bool = True, read_only: bool = False) -> Ledger:
        """The ledger in a file, or behind `postgresql://…`; made if it is not there."""
        return cls(open_store(where, durable=durable, read_only=read_only))

    def __repr__(self) -> str:
        return f"<Ledger at {self.head.sequence}>"

    def close(self) -> None:
        self._store.close()

    @contextmanager
    def commit(self, at: int) -> Iterator[Commit]:
        """
        A transaction. What it did is written when the block ends, if it did anything;
        an exception inside undoes all of it.
        """
        with self._store.transaction():
            commit = Commit(self._store, self.head, at)
            if commit.account(MINT) is None:
                commit.open_account(Account(id=MINT, kind=AccountKind.MINT))
                commit.open_account(Account(id=REVENUE, kind=AccountKind.REVENUE))
            yield commit
            if not commit.is_empty:
                commit.write()

    @property
    def head(self) -> Entry:
        return self._store.last(JOURNAL) or NOTHING_YET

    def account(self, account: str) -> Account | None:
        return self._store.get(ACCOUNT, account)

    def accounts(self) -> list[Account]:
        return self._store.find(ACCOUNT)

    def wallets_named(self, agent: str) -> list[Account]:
        """Every wallet agents of that name have had, oldest first."""
        found = self._store.find(ACCOUNT, "kind = ? AND name = ?", AccountKind.WALLET.value, agent)
        return sorted(found, key=lambda account: (account.opened_at, account.sequence))

    def lease(self, lease: str) -> Lease | None:
        return self._store.get(LEASE, lease)

    def lease_of_bid(self, bid_uid: str) -> Lease | None:
        return self._store.get(LEASE, lease_id(bid_uid))

    def live_leases(self) -> list[Lease]:
        return self._store.find(LEASE, "phase <> ?", Phase.RELEASED.value)

    def hold(self, hold: str) -> Hold | None:
        return self._store.get(HOLD, hold)

    def leases_of(self, wallet: str) -> list[Lease]:
        return self._store.find(LEASE, "wallet = ?", wallet)

    def transfers_of(self, account: str) -> list[Transfer]:
        found = self._store.find(TRANSFER, "debit = ? OR credit = ?", account, account)
        order = list(TransferKind)  # as a reader expects them: rent, then what follows from it
        return sorted(found, key=lambda t: (t.sequence, order.index(t.kind), t.id))

    def lots(self) -> list[LotPrice]:
        return self._store.find(LOT)

    def rounds_after(self, number: int, *, limit: int = 100) -> list[Round]:
        return self._store.find(ROUND, "number > ?", number, limit=limit)

    @property
    def last_round(self) -> int:
        found = self._store.last(ROUND)
        return found.number if found else 0
