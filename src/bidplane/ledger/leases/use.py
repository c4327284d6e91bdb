"""The use of a lease between its win and its end: claimed, up, idle, within its term."""

from __future__ import annotations

import msgspec

from bidplane.api.lease import Phase
from bidplane.core.leases.lifecycle import LeaseEvent, after
from bidplane.core.market.clearing import preemption
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases.billing import lease_by_id
from bidplane.ledger.records import Lease

CLAIM_MILLISECONDS = 60_000  # a lease that is ready and not claimed by then is released


def claim(commit: Commit, id: str) -> Lease:
    """Record that a pod has claimed the devices: time runs from here, if they are free yet."""
    lease = lease_by_id(commit, id)
    if lease.phase is Phase.PENDING and lease.ready:
        lease = msgspec.structs.replace(
            lease,
            phase=after(lease.phase, LeaseEvent.CLAIMED),
            active_at=commit.at,
            charged_until=commit.at,
            settled_at=commit.at,
            term_until=commit.at + 1000 * lease.term_seconds if lease.term_seconds else 0,
        )
    elif lease.claimed:
        return lease
    lease = msgspec.structs.replace(lease, claimed=True)
    commit.change_lease(lease)
    return lease


def note_up(commit: Commit, id: str) -> None:
    """
    Record that the lease's pods are ready: the time that took counts for the agent's restart class.
    """
    lease = lease_by_id(commit, id)
    if lease.up_at or lease.phase is not Phase.ACTIVE:
        return
    commit.change_lease(msgspec.structs.replace(lease, up_at=commit.at))
    wallet = commit.account(lease.wallet)
    if wallet is not None:
        took = commit.at - lease.active_at
        commit.change_account(
            msgspec.structs.replace(
                wallet,
                starts=wallet.starts + 1,
                start_ms=preemption.smoothed(wallet.starts, wallet.start_ms, took),
            )
        )


def note_idle(commit: Commit, id: str, since: int) -> None:
    """Record since when the lease's GPUs do nothing; 0: they work, or nobody knows."""
    commit.change_lease(msgspec.structs.replace(lease_by_id(commit, id), idle_since=since))


def is_unclaimed(lease: Lease, at: int) -> bool:
    """
    Return True if the lease was ready long enough without being claimed, and must be given up.
    """
    waiting = lease.phase is Phase.PENDING and lease.ready and not lease.claimed
    return waiting and at >= lease.ready_at + CLAIM_MILLISECONDS


def is_protected(lease: Lease, at: int) -> bool:
    """Return True while the lease's term runs: nobody displaces it, and its price stands."""
    return at < lease.term_until


def is_expired(lease: Lease, at: int) -> bool:
    """Return True if the lease must have its notice now, to end with its term."""
    ends = lease.term_until - 1000 * lease.notice_seconds
    return bool(lease.term_until) and not lease.renews and at >= ends
