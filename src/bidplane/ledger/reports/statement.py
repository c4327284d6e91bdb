"""A wallet's statement: every credit that came or went, adding up to the balance."""

from __future__ import annotations

import msgspec

from bidplane.api.lease import Phase
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import Lease, Transfer, TransferKind, wallet_of


class StatementRow(msgspec.Struct, frozen=True, kw_only=True):
    at: int
    kind: TransferKind
    text: str
    amount: int  # negative: it left the wallet
    balance: int  # after it
    lease: str = ""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    lines: tuple[StatementRow, ...]
    balance: int  # the last line's
    held: int  # of the balance, promised to what runs and what was won
    accruing: int  # used since the last bill: will be paid from what is held


def statement(ledger: Ledger, uid: str, *, now: int) -> Statement | None:
    """The statement of the agent with that uid; None if it never had a wallet."""
    wallet = ledger.account(wallet_of(uid))
    if wallet is None:
        return None
    balance = 0
    lines = []
    for transfer in ledger.transfers_of(wallet.id):
        amount = transfer.amount if transfer.credit == wallet.id else -transfer.amount
        balance += amount
        lines.append(
            StatementRow(
                at=transfer.at,
                kind=transfer.kind,
                text=_text(transfer, ledger, wallet.id),
                amount=amount,
                balance=balance,
                lease=transfer.lease,
            )
        )
    running = [lease for lease in ledger.leases_of(wallet.id) if lease.phase is not Phase.RELEASED]
    return Statement(
        agent=wallet.name,
        lines=tuple(lines),
        balance=balance,
        held=wallet.held,
        accruing=sum(lease.meter(now).due for lease in running),
    )


def _share_rented(lease: Lease | None) -> str:
    """The share that was rented, for a line of the statement; "" where it is whole GPUs."""
    if lease is None or not lease.share:
        return ""
    times = f"{lease.gpus} × " if lease.gpus > 1 else ""
    return f", {times}{lease.share}" + (" of a GPU" if lease.devices[0].is_part else "")


def _text(transfer: Transfer, ledger: Ledger, wallet: str) -> str:
    match transfer.kind:
        case TransferKind.TRANSFER:
            incoming = transfer.credit == wallet
            other = ledger.account(transfer.debit if incoming else transfer.credit)
            memo = f": {transfer.memo}" if transfer.memo else ""
            return f"{'from' if incoming else 'to'} {other.name if other else '?'}{memo}"
        case TransferKind.REFILL:
            return "hourly refill"
        case TransferKind.FUND:
            return f"funded by the owner{f': {transfer.memo}' if transfer.memo else ''}"
        case TransferKind.RENT:
            return f"rent of lease-{transfer.lease}{_share_rented(ledger.lease(transfer.lease))}"
        case TransferKind.LEVY:
            return f"levy on the rent of lease-{transfer.lease}, for compensations"
        case TransferKind.PREEMPTION:
            return f"paid ahead for lease-{transfer.lease}: what those it displaced are owed"
        case TransferKind.COMPENSATION:
            return f"compensation: lease-{transfer.lease} was outbid"
        case TransferKind.EARLY:
            return "fee for a round before its time"
        case TransferKind.CLOSE:
            return "returned when the agent was deleted"
        case TransferKind.SEED:
            return "seed of the pool's fund"
