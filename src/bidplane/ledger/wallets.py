"""An agent's wallet: opened with the Agent, refilled each hour, closed when it goes."""

from __future__ import annotations

import enum

import msgspec

from bidplane.api.lease import Phase
from bidplane.api.money import LARGEST_AMOUNT, LARGEST_SUPPLY
from bidplane.core.leases.lifecycle import LeaseEvent
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
    WALLET_FULL = "WalletFull"  # it would have more than one wallet may
    MINT_EXHAUSTED = "MintExhausted"  # all credits together would be more than there may be


class Moving(enum.StrEnum):
    """The outcomes of a transfer between two wallets; only the first moved anything."""

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
    """
    Return True if every database can store the text: PostgreSQL has no NUL, and none takes half a
    character.
    """
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def open_wallet(
    commit: Commit, *, uid: str, name: str, owner: str, team: str = "", marks: str = ""
) -> bool:
    """
    Create the wallet if it does not exist, and keep its team and labels true. Return False if it
    existed.
    """
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
    room = max(0, min(cap, LARGEST_AMOUNT) - wallet.posted)
    granted = min(amount * (hours - wallet.refills), room, mintable(commit))
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


def mintable(commit: Commit) -> int:
    """Return how much the mint may still issue."""
    mint = commit.account(MINT)
    return max(0, LARGEST_SUPPLY + (mint.posted if mint is not None else 0))


def forget_starts(commit: Commit, *, uid: str) -> None:
    """Forget the measured starts of an agent whose restart class is light by its own word."""
    wallet = commit.account(wallet_of(uid))
    if wallet is not None and wallet.starts:
        commit.change_account(msgspec.structs.replace(wallet, starts=0, start_ms=0))


def fund(commit: Commit, *, uid: str, amount: int, key: str, memo: str = "") -> Funding:
    """Add credits to a wallet by the owner's hand. The cap on refills does not bind it."""
    wallet = commit.account(wallet_of(uid))
    if wallet is None or not wallet.is_open:
        return Funding.NO_SUCH_WALLET
    if amount <= 0:
        return Funding.NOT_AN_AMOUNT
    if not is_text(key + memo):
        return Funding.NOT_A_TEXT
    id = f"fund/{uid}/{key}"
    earlier = commit.transferred(id)
    if earlier is not None:
        return Funding.DUPLICATE if earlier.amount == amount else Funding.KEY_REUSED
    if wallet.posted + amount > LARGEST_AMOUNT:
        return Funding.WALLET_FULL
    if amount > mintable(commit):
        return Funding.MINT_EXHAUSTED
    commit.transfer(id, TransferKind.FUND, debit=MINT, credit=wallet.id, amount=amount, memo=memo)
    return Funding.DONE


def transfer(
    commit: Commit, *, sender: str, receiver: str, amount: int, cap: int, key: str, memo: str = ""
) -> Moving:
    """
    Move credits from one agent to another, by uid: of the sender's available credits, up to the
    receiver's `cap`. Without the cap a full wallet could be parked with friends and refilled again.

    What is wrong on the sender's side is told first, so that it tells nothing of the receiver.
    """
    source, target = commit.account(wallet_of(sender)), commit.account(wallet_of(receiver))
    if source is None or not source.is_open:
        return Moving.NO_SENDER
    if target is not None and source.id == target.id:
        return Moving.SAME_WALLET
    if amount <= 0:
        return Moving.NOT_AN_AMOUNT
    if not is_text(key + memo):
        return Moving.NOT_A_TEXT
    id = f"transfer/{sender}/{key}"
    earlier = commit.transferred(id)
    if earlier is not None:
        is_repeat = target is not None and (earlier.credit, earlier.amount) == (target.id, amount)
        return Moving.DUPLICATE if is_repeat else Moving.KEY_REUSED
    if source.available < amount:
        return Moving.WALLET_TOO_SMALL
    if target is None or not target.is_open:
        return Moving.NO_RECEIVER
    if target.posted + amount > min(cap, LARGEST_AMOUNT):  # credits it holds count, too
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
            leases.release(commit, lease.id, LeaseEvent.LEFT)
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


def open_fund(commit: Commit, pool: str) -> None:
    """Make a pool's fund if it is not there. Levies stay in it; compensations pass through it."""
    if commit.account(fund_of(pool)) is None:
        commit.open_account(Account(id=fund_of(pool), kind=AccountKind.FUND, name=pool))
