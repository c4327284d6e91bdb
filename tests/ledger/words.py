"""Words for tests of the ledger."""

from __future__ import annotations

from bidplane.api.lease import DeviceRef
from bidplane.ledger import leases, wallets
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases import Award, Buyer, Terms
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import MINT, AccountKind, Lease, TransferKind, fund_of, wallet_of
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.verify import verify_store

CREDIT = 1_000_000
PRICE = 3_600_000  # so that one GPU costs a milli-credit a second
MILLI = 1000
TERMS = Terms(notice_seconds=30, restart_seconds=30, epoch_seconds=60)


def devices(count: int, first: int = 0) -> tuple[DeviceRef, ...]:
    names = range(first, first + count)
    return tuple(DeviceRef(node="n1", driver="d", pool="n1", name=f"gpu-{i}") for i in names)


def open_wallet(ledger: Ledger, uid: str = "u1", *, credits: int = 10, at: int = 0) -> None:
    with ledger.commit(at) as commit:
        wallets.open_wallet(commit, uid=uid, name=uid, owner="ann")
        wallets.fund(commit, uid=uid, amount=credits * CREDIT, key="first")
        wallets.open_fund(commit, "h100")
        commit.transfer(
            "levies", TransferKind.SEED, debit=MINT, credit=fund_of("h100"), amount=CREDIT
        )


def win(
    commit: Commit,
    bid: str = "b1",
    *,
    uid: str = "u1",
    gpus: int = 1,
    first: int = 0,
    price: int = PRICE,
    owed: int = 0,
    waits_for: tuple[str, ...] = (),
) -> Lease:
    return leases.win(
        commit,
        Award(
            buyer=Buyer(
                bid_uid=bid,
                bid_namespace=f"agent-{uid}",
                bid_name=bid,
                wallet=wallet_of(uid),
                agent=uid,
                owner="ann",
            ),
            terms=TERMS,
            pool="h100",
            domain="n1",
            devices=devices(gpus, first),
            max_price=PRICE,
            price=price,
            base=1,
            owed=owed,
            waits_for=waits_for,
        ),
    )


def balance(ledger: Ledger, uid: str = "u1") -> int:
    account = ledger.account(wallet_of(uid))
    assert account is not None
    return account.posted


def held(ledger: Ledger, uid: str = "u1") -> int:
    account = ledger.account(wallet_of(uid))
    assert account is not None
    return account.held


def check(store: LedgerStore) -> None:
    """Everything that must always be true of a ledger."""
    report = verify_store(store)
    assert report.is_sound, report.problem
    ledger = Ledger(store)
    accounts = ledger.accounts()
    assert sum(account.posted for account in accounts) == 0
    for account in accounts:
        assert account.held >= 0
        assert account.kind is AccountKind.MINT or account.available >= 0
