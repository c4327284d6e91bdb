"""
The payments between two times: the books, added up for those who read bills.

A wallet's net cost is what it paid for leases (rent, levy, preemption) less what it was paid
for being displaced. Every micro-credit of the ledger that moved for a lease in that time is in
exactly one line, so the lines add up to what the ledger's other side received.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bidplane.ledger.records import Account, AccountKind, TransferKind
from bidplane.ledger.reports.export import postings
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.tables import ACCOUNT

_WORK = {
    TransferKind.RENT.value,
    TransferKind.LEVY.value,
    TransferKind.PREEMPTION.value,
    TransferKind.COMPENSATION.value,
}


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The payments of one group, in micro-credits."""

    group: tuple[str, ...]
    rent: int = 0
    levy: int = 0
    preemption: int = 0
    compensation: int = 0  # received
    leases: int = 0
    daily: dict[str, int] = {}  # net, by UTC date

    @property
    def net(self) -> int:
        return self.rent + self.levy + self.preemption - self.compensation


class Chargeback(msgspec.Struct, frozen=True, kw_only=True):
    shares: tuple[Share, ...]  # the largest first
    received: int  # what revenue and funds got for it: the sum of all shares' net

    @property
    def total(self) -> int:
        return sum(share.net for share in self.shares)


def chargeback(
    store: LedgerStore,
    *,
    begin: int,
    end: int,
    group: Callable[[Account], tuple[str, ...]],
    day: Callable[[int], str],
) -> Chargeback:
    """
    Sum the payments from `begin` to before `end`, in milliseconds. `group`: the group of a wallet.
    """
    with store.reading():
        accounts = {account.id: account for account in store.find(ACCOUNT)}
        paid: dict[tuple[str, ...], dict[str, int]] = {}
        daily: dict[tuple[str, ...], dict[str, int]] = {}
        leases: dict[tuple[str, ...], set[str]] = {}
        received = 0
        for posting in postings(store):
            if posting.kind not in _WORK or not begin <= posting.at < end:
                continue
            account = accounts[posting.account]
            if account.kind is not AccountKind.WALLET:
                received += posting.amount
                continue
            payer = group(account)
            sums = paid.setdefault(payer, dict.fromkeys(_WORK, 0))
            days = daily.setdefault(payer, {})
            sums[posting.kind] += abs(posting.amount)
            when = day(posting.at)
            days[when] = days.get(when, 0) - posting.amount
            leases.setdefault(payer, set()).add(posting.lease)
    shares = [
        Share(group=payer, leases=len(leases[payer]), daily=daily[payer], **sums)
        for payer, sums in paid.items()
    ]
    shares.sort(key=lambda share: (-share.net, share.group))
    return Chargeback(shares=tuple(shares), received=received)
