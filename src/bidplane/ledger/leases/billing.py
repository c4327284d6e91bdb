"""
Rent, and the holds that pay it.

Rent is metered in the lease's row and billed at settlement points: each epoch, at notice, at
release. A bill captures the lease's open hold, so it cannot exceed it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from bidplane.api.money import rent
from bidplane.core.market.clearing import preemption
from bidplane.core.market.pricing.metering import MICRO_CREDIT, Meter, cover_seconds
from bidplane.ledger.commit import BrokenPromise, Commit
from bidplane.ledger.records import REVENUE, Hold, Lease, TransferKind, fund_of


class Terms(NamedTuple):
    """The terms of a pool, as they bind a lease from its win on."""

    notice_seconds: int
    restart_seconds: int
    epoch_seconds: int


def terms_of(lease: Lease) -> Terms:
    return Terms(lease.notice_seconds, lease.restart_seconds, lease.epoch_seconds)


def hold_for(price: int, weight: int, terms: Terms, term_seconds: int = 0) -> int:
    """
    The credits that must be held for a bid to take part, and while its lease runs: the rent of an
    epoch at its highest price, or of the rest of its term.
    """
    cover = cover_seconds(terms.epoch_seconds, terms.notice_seconds)
    return rent(price, weight, max(cover, term_seconds))


def lease_by_id(commit: Commit, id: str) -> Lease:
    """Return the lease of that id; raises `BrokenPromise` if there is none."""
    lease = commit.lease(id)
    if lease is None:
        raise BrokenPromise(f"there is no lease {id}")
    return lease


def bill(
    commit: Commit, lease: Lease, *, least: int = 0, carries_arrears: bool = False
) -> tuple[Lease, int]:
    """
    Capture what is due from the open hold, which closes it. Returns the lease, and what
    the hold had left.

    If rounds were late, the meter may have passed the hold: what was not held is not charged
    here, and stays on the meter only if the caller `carries_arrears`. `least` is what the lease
    owes over its whole life.
    """
    meter = lease.meter(commit.at)
    hold = commit.hold(lease.hold)
    due = min(max(meter.due, least - lease.charged), hold.amount)
    commit.close_hold(hold, captured=due)
    levy = preemption.levy(due, lease.levy_percent)
    levies = shared_out(levy, [(p.pool, p.worth) for p in lease.pools] or [(lease.pool, 1)])
    number = f"{lease.id}/{lease.holds}"
    for id, kind, credit, amount in (
        (f"rent/{number}", TransferKind.RENT, REVENUE, due - levy),
        *(
            (
                transfer_id(f"levy/{number}", name, lease.pools),
                TransferKind.LEVY,
                fund_of(name),
                part,
            )
            for name, part in levies.items()
        ),
    ):
        if amount:
            commit.transfer(
                id, kind, debit=lease.wallet, credit=credit, amount=amount, lease=lease.id
            )
    billed = meter.billed(due) if due == meter.due or carries_arrears else Meter(0, meter.until)
    lease = msgspec.structs.replace(lease, charged=lease.charged + due, settled_at=commit.at)
    return metered(lease, billed), hold.amount - due


def shared_out(amount: int, weights: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Divide an amount by weight, to the last micro-credit: the parts add up to the amount."""
    total = sum(weight for _, weight in weights)
    parts: dict[str, int] = {}
    before = assigned = 0
    for name, weight in weights:
        before += weight
        parts[name] = amount * before // total - assigned
        assigned += parts[name]
    return parts


def transfer_id(id: str, pool: str, several: Collection[object]) -> str:
    """The id of one transfer; with the pool's name if the funds of several pools take part."""
    return f"{id}/{pool}" if several else id


def metered(lease: Lease, meter: Meter) -> Lease:
    """Return the lease with the meter's state."""
    micro_credits, fraction = divmod(meter.metered, MICRO_CREDIT)
    return msgspec.structs.replace(
        lease, metered=micro_credits, metered_rest=fraction, charged_until=meter.until
    )


def open_hold(commit: Commit, lease: Lease, amount: int) -> Lease:
    """Open the next hold of a lease; return the lease with it."""
    number = lease.holds + 1
    id = f"{lease.id}/{number}"
    commit.open_hold(Hold(id=id, account=lease.wallet, lease=lease.id, amount=amount))
    return msgspec.structs.replace(lease, hold=id, holds=number)
