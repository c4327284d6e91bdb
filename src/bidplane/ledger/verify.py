"""
Verification of a ledger: its chain, its balances and its rows.

The journal is replayed from its first row. Each row must follow from the one before by
its hash; what it wrote must keep every rule of the ledger; and what all of them wrote
together must be what the tables hold now. The first thing that is not so is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from bidplane.api.lease import DeviceRef, Phase
from bidplane.api.shape import PART_UNITS
from bidplane.core.devices.ranges import Ranges, occupied, overlap, union
from bidplane.ledger.records import AccountKind, HoldState
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.stores import open_store
from bidplane.ledger.tables import JOURNAL, JOURNALLED, Table
from bidplane.storage.chain import GENESIS, link

Values = dict[str, Any]


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    problem: str  # "" when all is well; names the first broken row
    commits: int
    transfers: int
    accounts: int
    leases: int
    head: str  # the last hash: keep it elsewhere to notice a ledger that was cut short

    @property
    def is_sound(self) -> bool:
        return not self.problem


class _Broken(Exception):
    """The first inconsistency that was found."""


def verify(location: Path | str) -> VerifyReport:
    """Check a ledger, which is only read; a running exchange is not disturbed."""
    store = open_store(location, read_only=True)
    try:
        return verify_store(store)
    finally:
        store.close()


def verify_store(store: LedgerStore) -> VerifyReport:
    replay = _Replay()
    if damage := store.damage():
        return _report(replay, f"the database is damaged: {damage}")
    problem = ""
    try:
        with store.reading():
            for row in store.rows(JOURNAL):
                replay.commit(*row)
            for table in JOURNALLED.values():
                replay.compare(table, store)
    except _Broken as broken:
        problem = str(broken)
    except Exception as error:
        # Whatever a file may hold that is no ledger's: it is named, and never a traceback.
        problem = f"after journal {replay.sequence}: {type(error).__name__}: {error}"
    return _report(replay, problem)


def _report(replay: _Replay, problem: str) -> VerifyReport:
    return VerifyReport(
        problem=problem,
        commits=replay.sequence,
        transfers=len(replay.tables["transfer"]),
        accounts=len(replay.tables["account"]),
        leases=len(replay.tables["lease"]),
        head=replay.hash.hex(),
    )


class _Replay:
    """The ledger's state, rebuilt from its journal."""

    def __init__(self) -> None:
        self.sequence = 0
        self.at = 0
        self.hash = GENESIS
        self.tables: dict[str, dict[Any, Values]] = {name: {} for name in JOURNALLED}
        self._posted: dict[str, int] = {}  # by account, from transfers
        self._held: dict[str, int] = {}  # by account, from open holds
        # By device: the leases that hold some of it, and which of its units.
        self._users: dict[DeviceRef, dict[str, Ranges]] = {}
        self._recheck: set[DeviceRef] = set()

    def commit(self, sequence: int, at: int, payload: bytes, hash: bytes) -> None:
        name = f"journal {sequence}"
        if sequence != self.sequence + 1:
            raise _Broken(f"{name}: journal {self.sequence + 1} is missing before it")
        if link(self.hash, sequence, at, payload) != hash:
            raise _Broken(
                f"{name}: its hash does not follow from its content and journal {self.sequence}"
            )
        if at < self.at:
            raise _Broken(f"{name}: it is older than journal {self.sequence}")
        touched: set[str] = set()
        for table_name, row in msgspec.json.decode(payload):
            table = JOURNALLED[table_name]
            values = dict(zip(table.columns, table.whole(row), strict=True))
            self._apply(name, table_name, values[table.key], values, touched)
        self.sequence, self.at, self.hash = sequence, at, hash
        self._check_money(name, touched)
        self._check_devices(name)

    def _apply(self, name: str, table: str, key: Any, values: Values, touched: set[str]) -> None:
        before = self.tables[table].get(key)
        self.tables[table][key] = values
        match table:
            case "account":
                touched.add(key)
            case "transfer":
                if before is not None:
                    raise _Broken(f"{name}: transfer {key} was made before")
                self._move(values["debit"], -values["amount"], touched)
                self._move(values["credit"], values["amount"], touched)
            case "hold":
                self._hold(name, key, before, values)
                touched.add(values["account"])
            case "lease":
                self._lease(name, key, before, values)

    def _move(self, account: str, amount: int, touched: set[str]) -> None:
        self._posted[account] = self._posted.get(account, 0) + amount
        touched.add(account)

    def _hold(self, name: str, key: str, before: Values | None, values: Values) -> None:
        if before is not None and before["state"] != HoldState.OPEN:
            raise _Broken(f"{name}: hold {key} was closed before")
        account = values["account"]
        change = values["amount"] if values["state"] == HoldState.OPEN else 0
        change -= before["amount"] if before is not None else 0
        self._held[account] = self._held.get(account, 0) + change

    def _lease(self, name: str, key: str, before: Values | None, values: Values) -> None:
        weights = [weight for _, weight, _ in msgspec.json.decode(values["pools"])]
        if weights and sum(weights) != values["weight"]:
            makes = f"its pools make {sum(weights)}, it pays for {values['weight']}"
            raise _Broken(f"{name}: lease {key}: {makes}")
        for device in _devices(before) if before else ():
            self._users[device.whole].pop(key, None)
        if values["phase"] == Phase.RELEASED:
            return
        for device in _devices(values):
            users = self._users.setdefault(device.whole, {})
            users[key] = union((users.get(key, ()), occupied(device)))
            self._recheck.add(device.whole)

    def _check_devices(self, name: str) -> None:
        """
        Check that each part of a device is in one lease, or in one that leaves and one that waits.
        """
        for device in sorted(self._recheck):
            users = self._users[device]
            for part in _stretches(users.values()) if len(users) > 1 else ():
                holders = sorted(id for id, ranges in users.items() if overlap(ranges, part))
                leases = [self.tables["lease"][id] for id in holders]
                if len(leases) > 1 and not _hands_over(leases):
                    name_shown, ids = f"{device.node}/{device.name}", ", ".join(holders)
                    if _is_shared(leases):
                        name_shown += f" (units {part[0]} to {part[1]} of {PART_UNITS})"
                    raise _Broken(f"{name}: device {name_shown} is in more than one lease: {ids}")
        self._recheck.clear()

    def _check_money(self, name: str, touched: set[str]) -> None:
        for id in sorted(touched):
            account = self.tables["account"].get(id)
            if account is None:
                raise _Broken(f"{name}: account {id} is used and was never opened")
            posted, in_holds = self._posted.get(id, 0), self._held.get(id, 0)
            if account["posted"] != posted:
                has = f"has {account['posted']}, its transfers make {posted}"
                raise _Broken(f"{name}: account {id} {has}")
            if account["held"] != in_holds:
                has = f"holds {account['held']}, its open holds make {in_holds}"
                raise _Broken(f"{name}: account {id} {has}")
            if account["kind"] != AccountKind.MINT and posted < in_holds:
                raise _Broken(f"{name}: account {id} is overdrawn by {in_holds - posted}")
        total = sum(account["posted"] for account in self.tables["account"].values())
        if total:
            raise _Broken(f"{name}: all balances together make {total}, not zero")

    def compare(self, table: Table[Any], store: LedgerStore) -> None:
        """
        Check that every row of the table is what the journal last wrote, and that none is missing.
        """
        written = dict(self.tables[table.name])
        for row in store.rows(table):
            key = row[0]
            now = dict(zip(table.columns, table.journalled(row), strict=True))
            then = written.pop(key, None)
            if then is None:
                raise _Broken(f"{table.name} {key}: no commit wrote it")
            for column in table.columns:
                if now[column] != then[column]:
                    difference = f"{column} is {now[column]!r}, commit {then['sequence']} wrote"
                    raise _Broken(f"{table.name} {key}: {difference} {then[column]!r}")
        if written:
            key = min(written)
            sequence = written[key]["sequence"]
            raise _Broken(f"{table.name} {key}: commit {sequence} wrote it and it is gone")


def _devices(lease: Values) -> list[DeviceRef]:
    return msgspec.json.decode(lease["devices"], type=list[DeviceRef])


def _stretches(parts: Iterable[Ranges]) -> Iterator[Ranges]:
    """Yield the stretches of a device between any two borders of what leases hold of it."""
    yield from pairwise(sorted({at for ranges in parts for at in ranges}))


def _is_shared(leases: list[Values]) -> bool:
    return any(device.share for lease in leases for device in _devices(lease))


def _hands_over(leases: list[Values]) -> bool:
    waiting = [lease for lease in leases if lease["phase"] == Phase.PENDING]
    leaving = [lease for lease in leases if lease["phase"] == Phase.DRAINING]
    return (
        len(leases) == 2
        and len(waiting) == len(leaving) == 1
        and leaving[0]["id"] in msgspec.json.decode(waiting[0]["waits_for"])
    )
