"""
Budgets: what all leases of one work together may cost.

A work is a name of its agent's: a pod and what comes after it when it was evicted, a Job's pods,
a gang. Its budget binds as a wallet does: a hold is opened only if the budget covers it beside
what was charged and what is held already, and a bill never takes more than its hold. So the
budget is never exceeded, whoever bids and whatever prices do.
"""

from __future__ import annotations

from typing import NamedTuple

from bidplane.ledger.commit import Commit
from bidplane.ledger.records import HoldState, Lease


class Spent(NamedTuple):
    """The cost and the running time of a work so far."""

    charged: int = 0
    held: int = 0  # by leases that run, beyond what they were charged
    seconds: int = 0  # that it ran


def spent(commit: Commit, wallet: str, work: str) -> Spent:
    charged = held = milliseconds = 0
    for lease in commit.leases_for(wallet, work):
        charged += lease.charged
        hold = commit.hold(lease.hold) if lease.hold else None
        held += hold.amount if hold is not None and hold.state is HoldState.OPEN else 0
        if lease.active_at:
            milliseconds += (lease.released_at or commit.at) - lease.active_at
    return Spent(charged, held, milliseconds // 1000)


def remaining(commit: Commit, wallet: str, work: str, budget: int) -> int:
    """The credits that may still be held for the work."""
    so_far = spent(commit, wallet, work)
    return max(0, budget - so_far.charged - so_far.held)


def remaining_for(commit: Commit, lease: Lease) -> int | None:
    """
    The credits that may still be held for a lease that holds nothing now; None without a budget.
    """
    return remaining(commit, lease.wallet, lease.work, lease.budget) if lease.budget else None
