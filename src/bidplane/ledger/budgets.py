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
    """What a work has come to."""

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


def left(commit: Commit, wallet: str, work: str, budget: int) -> int:
    """What may still be held for it."""
    known = spent(commit, wallet, work)
    return max(0, budget - known.charged - known.held)


def left_of(commit: Commit, lease: Lease) -> int | None:
    """What may still be held for a lease that holds nothing now; None without a budget."""
    return left(commit, lease.wallet, lease.work, lease.budget) if lease.budget else None
