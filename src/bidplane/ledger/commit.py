"""
One commit: everything a round writes, all of it or none.

A commit works on copies and writes each row once, at its end, with a journal row that
repeats all of them and is chained to the row before. A commit that changed nothing
writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from bidplane.api.lease import Phase
from bidplane.ledger.records import (
    Account,
    AccountKind,
    Entry,
    Hold,
    HoldState,
    Lease,
    LotPrice,
    Record,
    Round,
    Transfer,
    TransferKind,
    lease_id,
)
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.tables import (
    ACCOUNT,
    HOLD,
    JOURNAL,
    JOURNALLED,
    LEASE,
    LOT,
    ROUND,
    TRANSFER,
    Table,
)
from bidplane.storage.chain import link

R = TypeVar("R", bound=Record)


class BrokenPromise(Exception):
    """The ledger was asked to break one of its own rules: a bug in the caller."""


class Overdraft(BrokenPromise):
    """An account would have less than it has promised."""


class Commit:
    """Made by `Ledger.commit`; not used after it."""

    def __init__(self, store: LedgerStore, head: Entry, at: int) -> None:
        self.sequence = head.sequence + 1
        # Time never goes back: a clock that did is read as standing still.
        self.at = max(at, head.at)
        self._head = head
        self._store = store
        self._rows: dict[tuple[str, Any], Any] = {}  # by (table, key): the latest
        self._added: set[tuple[str, Any]] = set()  # to be inserted
        self._changed: set[tuple[str, Any]] = set()  # to be updated
        self._live: set[str] | None = None  # ids of leases that were not released at first sight

    @property
    def is_empty(self) -> bool:
        return not (self._added or self._changed)

    # Accounts and money

    def account(self, account: str) -> Account | None:
        return self._get(ACCOUNT, account)

    def open_wallets(self) -> list[Account]:
        kind = AccountKind.WALLET.value
        stored = self._store.find(ACCOUNT, "kind = ? AND is_open = 1", kind)
        return [account for a in stored if (account := self._latest(ACCOUNT, a)).is_open]

    def open_account(self, account: Account) -> None:
        self._add(ACCOUNT, msgspec.structs.replace(account, opened_at=self.at))

    def change_account(self, account: Account) -> None:
        self._change(ACCOUNT, account)

    def transfer(
        self,
        id: str,
        kind: TransferKind,
        *,
        debit: str,
        credit: str,
        amount: int,
        lease: str = "",
        memo: str = "",
    ) -> bool:
        """Move `amount`; False, and nothing moves, if the transfer of that id was made."""
        if self._get(TRANSFER, id) is not None:
            return False
        if amount <= 0:
            raise BrokenPromise(f"transfer {id}: {amount} is not an amount to move")
        source, target = self._open(debit), self._open(credit)
        if source.kind is not AccountKind.MINT and source.available < amount:
            raise Overdraft(f"transfer {id}: {debit} has {source.available} free, not {amount}")
        self._change(ACCOUNT, msgspec.structs.replace(source, posted=source.posted - amount))
        self._change(ACCOUNT, msgspec.structs.replace(target, posted=target.posted + amount))
        self._add(
            TRANSFER,
            Transfer(
                id=id,
                kind=kind,
                debit=debit,
                credit=credit,
                amount=amount,
                at=self.at,
                lease=lease,
                memo=memo,
            ),
        )
        return True

    def prefetch(self, table: Table[R], keys: Iterable[str]) -> None:
        """Read many rows at once, for a caller that is about to ask for each of them."""
        unknown = [key for key in keys if (table.name, key) not in self._rows]
        stored = {getattr(r, table.key): r for r in self._store.get_many(table, unknown)}
        for key in unknown:
            self._rows[table.name, key] = stored.get(key)

    def transferred(self, id: str) -> Transfer | None:
        return self._get(TRANSFER, id)

    def hold(self, hold: str) -> Hold:
        stored = self._get(HOLD, hold)
        if stored is None:
            raise BrokenPromise(f"there is no hold {hold}")
        return stored

    def open_hold(self, hold: Hold) -> None:
        account = self._open(hold.account)
        if account.available < hold.amount:
            free = f"{hold.account} has {account.available} free"
            raise Overdraft(f"hold {hold.id}: {free}, not {hold.amount}")
        self._change(ACCOUNT, msgspec.structs.replace(account, held=account.held + hold.amount))
        self._add(HOLD, hold)

    def close_hold(self, hold: Hold, *, captured: int) -> None:
        """
        Close an open hold. The captured amount is then to be transferred; the rest is available
        again.
        """
        if hold.state is not HoldState.OPEN or not 0 <= captured <= hold.amount:
            raise BrokenPromise(f"cannot capture {captured} of {hold}")
        account = self._open(hold.account)
        self._change(ACCOUNT, msgspec.structs.replace(account, held=account.held - hold.amount))
        state = HoldState.CAPTURED if captured else HoldState.VOIDED
        self._change(HOLD, msgspec.structs.replace(hold, state=state, captured=captured))

    # Leases, prices, rounds

    def lease(self, lease: str) -> Lease | None:
        return self._get(LEASE, lease)

    def lease_of_bid(self, bid_uid: str) -> Lease | None:
        return self._get(LEASE, lease_id(bid_uid))

    def leases_for(self, wallet: str, work: str) -> list[Lease]:
        """Every lease of one work, in any phase, as this commit has it so far."""
        stored = self._store.find(LEASE, "wallet = ? AND work = ?", wallet, work)
        by_id = {lease.id: self._latest(LEASE, lease) for lease in stored}
        for table, key in self._added:
            if table == LEASE.name:
                added: Lease = self._rows[table, key]
                if (added.wallet, added.work) == (wallet, work):
                    by_id[added.id] = added
        return list(by_id.values())

    def live_leases(self) -> list[Lease]:
        """Every lease that is not released, as this commit has it so far."""
        if self._live is None:  # read once: nobody else writes while this commit is open
            stored = self._store.find(LEASE, "phase <> ?", Phase.RELEASED.value)
            added = {key for table, key in self._added if table == LEASE.name}
            self._live = {self._latest(LEASE, lease).id for lease in stored} | added
            # Callers need the holds of the live leases, too: one read for all.
            for hold in self._store.find(HOLD, "state = ?", HoldState.OPEN.value):
                self._latest(HOLD, hold)
        leases: list[Lease] = [self._rows[LEASE.name, id] for id in sorted(self._live)]
        return [lease for lease in leases if lease.phase is not Phase.RELEASED]

    def add_lease(self, lease: Lease) -> None:
        self._add(LEASE, lease)
        if self._live is not None:
            self._live.add(lease.id)

    def change_lease(self, lease: Lease) -> None:
        self._change(LEASE, lease)

    def lot(self, lot: str) -> LotPrice | None:
        return self._get(LOT, lot)

    def put_lot(self, lot: LotPrice) -> None:
        if self.lot(lot.lot) is None:
            self._add(LOT, lot)
        else:
            self._change(LOT, lot)

    def add_round(self, *, input: bytes, result: bytes) -> int:
        last = self._store.last(ROUND)
        number = last.number + 1 if last else 1
        self._add(ROUND, Round(number=number, at=self.at, input=input, result=result))
        return number

    # Writing it down

    def write(self) -> Entry:
        """Write every row, and the journal row that covers them. Called once, by `Ledger`."""
        entries: list[Any] = []
        keys: dict[str, list[Any]] = {}
        for name, key in self._added | self._changed:
            keys.setdefault(name, []).append(key)
        for name, table in JOURNALLED.items():  # accounts first: others refer to them
            new: list[Any] = []
            changed: list[Any] = []
            for key in sorted(keys.get(name, ())):
                record = msgspec.structs.replace(self._rows[name, key], sequence=self.sequence)
                (new if (name, key) in self._added else changed).append(record)
                entries.append([name, table.journalled(table.row(record))])
            if new:
                self._store.insert(table, *new)
            if changed:
                self._store.update(table, *changed)
        payload = msgspec.json.encode(entries)
        entry = Entry(
            sequence=self.sequence,
            at=self.at,
            payload=payload,
            hash=link(self._head.hash, self.sequence, self.at, payload),
        )
        self._store.insert(JOURNAL, entry)
        return entry

    def _open(self, account: str) -> Account:
        opened = self.account(account)
        if opened is None or not opened.is_open:
            raise BrokenPromise(f"account {account} is not open")
        return opened

    def _get(self, table: Table[R], key: str) -> R | None:
        if (table.name, key) not in self._rows:
            self._rows[table.name, key] = self._store.get(table, key)
        record: R | None = self._rows[table.name, key]
        return record

    def _latest(self, table: Table[R], stored: R) -> R:
        key = (table.name, getattr(stored, table.key))
        latest: R = self._rows.setdefault(key, stored)
        return latest

    def _add(self, table: Table[R], record: R) -> None:
        key = getattr(record, table.key)
        if table is not ROUND and self._get(table, key) is not None:
            raise BrokenPromise(f"{table.name} {key} is there already")
        self._rows[table.name, key] = record
        self._added.add((table.name, key))

    def _change(self, table: Table[R], record: R) -> None:
        key = (table.name, getattr(record, table.key))
        self._rows[key] = record
        if key not in self._added:
            self._changed.add(key)
