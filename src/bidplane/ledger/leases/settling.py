"""Settlement: bills each epoch, arrears, and the price of a running lease."""

from __future__ import annotations

import msgspec

from bidplane.api.lease import Phase
from bidplane.api.money import rent
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.core.market.pricing.metering import reserve_seconds
from bidplane.ledger import budgets
from bidplane.ledger.commit import BrokenPromise, Commit
from bidplane.ledger.leases.billing import (
    bill,
    hold_for,
    lease_by_id,
    metered,
    open_hold,
    terms_of,
)
from bidplane.ledger.records import Lease

# After a stall or an outage, the most time beyond its hold that a lease is billed for. A clock
# that was set wrong must not empty every wallet.
ARREARS_SECONDS = 3600


def needs_settling(commit: Commit, lease: Lease) -> bool:
    """
    Return True at each epoch's end, and before the hold is too small for the rent of a notice.
    """
    if lease.phase is not Phase.ACTIVE or lease.breached_at:
        return False
    unspent = commit.hold(lease.hold).amount - lease.meter(commit.at).balance
    least = rent(lease.max_price, lease.weight, reserve_seconds(lease.notice_seconds))
    return unspent < least or commit.at >= lease.settled_at + 1000 * lease.epoch_seconds


def settle(commit: Commit, id: str) -> LeaseEvent | None:
    """
    Bill the time used and hold the next epoch's rent; or return the event if that cannot be held.
    Rent runs by the clock, so time that no round settled is billed as well, while wallet and budget
    cover it.
    """
    lease, unspent = bill(commit, lease_by_id(commit, id), carries_arrears=True)
    commit.change_lease(lease)
    lease, is_paid = _pay_arrears(commit, lease)
    commit.change_lease(lease)
    terms = terms_of(lease)
    ahead = max(0, -lease.meter(commit.at).balance)  # paid already: need not be held again
    left_of_term = max(0, lease.term_until - commit.at) // 1000
    needed = max(0, hold_for(lease.max_price, lease.weight, terms, left_of_term) - ahead)
    reason = None
    budget = budgets.remaining_for(commit, lease)
    if budget is not None and budget < needed:
        # Used up to the last, but never so that less than the notice would be held.
        least = rent(lease.max_price, lease.weight, reserve_seconds(lease.notice_seconds))
        reason = LeaseEvent.BUDGET_SPENT if budget < least - ahead else None
        needed = budget
    wallet = commit.account(lease.wallet)
    if not is_paid or wallet is None or wallet.available < needed:
        reason = LeaseEvent.UNFUNDED
    # Unfunded, it drains on what was already held.
    lease = open_hold(commit, lease, unspent if reason else needed)
    commit.change_lease(lease)
    return reason


def _pay_arrears(commit: Commit, lease: Lease) -> tuple[Lease, bool]:
    """
    Bill time beyond the hold, after rounds were late by more than it covered: at most
    `ARREARS_SECONDS`, and what wallet and budget can hold. Returns whether all of it was paid.
    """
    arrears = lease.meter(commit.at).due
    if not arrears:
        return lease, True
    wallet = commit.account(lease.wallet)
    available = wallet.available if wallet is not None else 0
    most = rent(lease.price, lease.weight, ARREARS_SECONDS)
    budget = budgets.remaining_for(commit, lease)
    amount = max(0, min(arrears, most, available, arrears if budget is None else budget))
    lease, _ = bill(commit, open_hold(commit, lease, amount))
    return lease, amount == arrears


def raise_bid(commit: Commit, id: str, max_price: int) -> bool:
    """
    Raise the most that a lease pays: from now on it ranks by that, and holds it. Return False, and
    change nothing, if it is no more than before, or wallet or budget cannot cover it.
    """
    lease = lease_by_id(commit, id)
    if max_price <= lease.max_price or lease.phase is not Phase.ACTIVE or lease.breached_at:
        return False
    unspent = commit.hold(lease.hold).amount - lease.meter(commit.at).due
    left_of_term = max(0, lease.term_until - commit.at) // 1000
    needed = hold_for(max_price, lease.weight, terms_of(lease), left_of_term)
    wallet = commit.account(lease.wallet)
    budget = budgets.remaining_for(commit, lease)
    if wallet is None or wallet.available + unspent < needed:
        return False
    if budget is not None and budget + unspent < needed:
        return False
    commit.change_lease(msgspec.structs.replace(lease, max_price=max_price))
    return settle(commit, id) is None


def reprice(commit: Commit, id: str, price: int) -> None:
    """Set the price from now on. Time used until now stays at the old price."""
    lease = lease_by_id(commit, id)
    if price > lease.max_price:
        raise BrokenPromise(f"lease {id}: {price} is above its bid of {lease.max_price}")
    meter = lease.meter(commit.at)
    commit.change_lease(metered(msgspec.structs.replace(lease, price=price), meter))
