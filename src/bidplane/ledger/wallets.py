"""An agent's wallet: opened with the Agent, refilled each hour, closed when it goes."""

from __future__ import annotations

import enum

import msgspec

from bidplane.api.lease import Phase
from bidplane.core.lease import Event
from bidplane.ledger import leases
from bidplane.ledger.commit import Commit
from bidplane.ledger.records import (
    MINT,
    Account,
    AccountKind,
    TransferKind,
    fund_of,
    wallet_of,
)

REFILL_MILLISECONDS = 3600 * 1000


class Funding(enum.StrEnum):
    DONE = "Done"
    DUPLICATE = "Duplicate"  # that key was used for the same amount: nothing moved
    KEY_REUSED = "KeyReused"  # that key was used for another amount: nothing moved
    NO_SUCH_WALLET = "NoSuchWallet"
    NOT_AN_AMOUNT = "NotAnAmount"
    NOT_A_TEXT = "NotAText"  # the key or memo has what no database keeps


class Moving(enum.StrEnum):
    """What became of a transfer between two wallets; only the first moved anything."""

    DONE = "Done"
    DUPLICATE = "Duplicate"  # that key was used for the same transfer
    KEY_REUSED = "KeyReused"  # that key was used for another
    NO_SENDER = "NoSender"
    NO_RECEIVER = "NoReceiver"
    SAME_WALLET = "SameWallet"
    NOT_AN_AMOUNT = "NotAnAmount"
    NOT_A_TEXT = "NotAText"
    WALLET_TOO_SMALL = "WalletTooSmall"
    OVER_CAP = "OverCap"  # the receiver would have more than it may carry over


def is_text(text: str) -> bool:
    """Whether every database keeps it: PostgreSQL has no NUL, and nobody half a character."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def open_wallet(
    commit: Commit, *, uid: str, name: str, owner: str, team: str = "", marks: str = ""
) -> bool:
    """Make the wallet if it is not there; False if it was. Its team and labels are kept true."""
    wallet = commit.account(wallet_of(uid))
    if wallet is None:
        id, kind = wallet_of(uid), AccountKind.WALLET
        account = Account(id=id, kind=kind, name=name, owner=owner, team=team, marks=marks)
        commit.open_account(account)
        return True
    if wallet.is_open and (wallet.team, wallet.marks) != (team, marks):
        commit.change_account(msgspec.structs.replace(wallet, team=team, marks=marks))
    return False


def refill(commit: Commit, *, uid: str, amount: int, cap: int) -> int:
    """
    Grant what is due: `amount` at the wallet's opening and for each hour since, never so
    that the wallet has more than `cap`, credits it holds included. Returns what was moved.
    """
    wallet = commit.account(wallet_of(uid))
    if wallet is None or not wallet.is_open:
        return 0
    hours = 1 + (commit.at - wallet.opened_at) // REFILL_MILLISECONDS
    if hours <= wallet.refills:
        return 0
    granted = min(amount * (hours - wallet.refills), max(0, cap - wallet.posted))
    commit.change_account(msgspec.structs.replace(wallet, refills=hours))
    if granted:
        commit.transfer(
            f"refill/{uid}/{hours}",
            TransferKind.REFILL,
            debit=MINT,
            credit=wallet.id,
            amount=granted,
        )
    return granted


def forget_starts(commit: Commit, *, uid: str) -> None:
    """Its restart class is light by its own word: what was measured of another is of no use."""
    wallet = commit.account(wallet_of(uid))
    if wallet is not None and wallet.starts:
        commit.change_account(msgspec.structs.replace(wallet, starts=0, start_ms=0))


def fund(commit: Commit, *, uid: str, amount: int, key: str, memo: str = "") -> Funding:
    """Credits by the owner's hand. The cap on refills does not bind it."""
    wallet = commit.account(wallet_of(uid))
    if wallet is None or not wallet.is_open:
        return Funding.NO_SUCH_WALLET
    if amount <= 0:
        return Funding.NOT_AN_AMOUNT
    if not is_text(key + memo):
        return Funding.NOT_A_TEXT
    id = f"fund/{uid}/{key}"
    made = commit.transferred(id)
    if made is not None:
        return Funding.DUPLICATE if made.amount == amount else Funding.KEY_REUSED
    commit.transfer(id, TransferKind.FUND, debit=MINT, credit=wallet.id, amount=amount, memo=memo)
    return Funding.DONE


def transfer(
    commit: Commit, *, sender: str, receiver: str, amount: int, cap: int, key: str, memo: str = ""
) -> Moving:
    """
    From one agent to another, by uid: of what the sender has free, up to the receiver's
    `cap`. Without the cap a full wallet could be parked with friends and refilled again.
    """
    source, target = commit.account(wallet_of(sender)), commit.account(wallet_of(receiver))
    if source is None or not source.is_open:
        return Moving.NO_SENDER
    if target is None or not target.is_open:
        return Moving.NO_RECEIVER
    if source.id == target.id:
        return Moving.SAME_WALLET
    if amount <= 0:
        return Moving.NOT_AN_AMOUNT
    if not is_text(key + memo):
        return Moving.NOT_A_TEXT
    id = f"transfer/{sender}/{key}"
    made = commit.transferred(id)
    if made is not None:
        same = (made.credit, made.amount) == (target.id, amount)
        return Moving.DUPLICATE if same else Moving.KEY_REUSED
    if source.available < amount:
        return Moving.WALLET_TOO_SMALL
    if target.posted + amount > cap:  # credits it holds count, too
        return Moving.OVER_CAP
    commit.transfer(
        id,
        TransferKind.TRANSFER,
        debit=source.id,
        credit=target.id,
        amount=amount,
        memo=memo,
    )
    return Moving.DONE


def close_wallet(commit: Commit, *, uid: str) -> bool:
    """
    Release what the agent still leases, return what it still has. The account stays,
    closed, for whoever audits it. False if there is nothing to close.
    """
    wallet = commit.account(wallet_of(uid))
    if wallet is None or not wallet.is_open:
        return False
    for lease in commit.live_leases():
        if lease.wallet == wallet.id and lease.phase is not Phase.RELEASED:
            leases.release(commit, lease.id, Event.LEFT)
    wallet = commit.account(wallet.id) or wallet
    if wallet.posted:
        commit.transfer(
            f"close/{uid}",
            TransferKind.CLOSE,
            debit=wallet.id,
            credit=MINT,
            amount=wallet.posted,
        )
        wallet = commit.account(wallet.id) or wallet
    commit.change_account(msgspec.structs.replace(wallet, is_open=False))
    return True


def seed_fund(commit: Commit, *, pool: str, wanted: int) -> int:
    """
    Bring what the mint has put into a pool's fund up to `wanted`: the price of displacing
    every lease once, which grows with the pool. Returns what was moved.
    """
    id = fund_of(pool)
    if commit.account(id) is None:
        commit.open_account(Account(id=id, kind=AccountKind.FUND, name=pool))
    fund = commit.account(id)
    if fund is None or wanted <= fund.seeded:
        return 0
    commit.change_account(msgspec.structs.replace(fund, seeded=wanted))
    amount = wanted - fund.seeded
    commit.transfer(
        f"seed/{pool}/{wanted}", TransferKind.SEED, debit=MINT, credit=id, amount=amount
    )
    return amount
