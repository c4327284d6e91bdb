"""The end of a lease: notice, compensation, release; and the stop of rent when a device fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from bidplane.core.leases.lifecycle import LeaseEvent, after
from bidplane.core.market.pricing.metering import MICRO_CREDIT, Meter
from bidplane.ledger.commit import BrokenPromise, Commit
from bidplane.ledger.leases.billing import bill, lease_by_id, metered, open_hold, transfer_id
from bidplane.ledger.records import Lease, TransferKind, fund_of

_ITS_OWN: Mapping[str, int] = {}  # the fund of its own pool


def notice(
    commit: Commit,
    id: str,
    event: LeaseEvent,
    *,
    compensation: int = 0,
    funds: Mapping[str, int] = _ITS_OWN,
) -> Lease:
    """
    Give a lease notice: bill it to now, compensate it, and leave it time to save its work. `funds`:
    by pool, the part of the compensation that its fund pays, if not its own pool's pays all.
    """
    lease, unspent = bill(commit, lease_by_id(commit, id))
    lease = open_hold(commit, lease, unspent)
    _compensate(commit, lease, compensation, funds)
    lease = msgspec.structs.replace(
        lease,
        phase=after(lease.phase, event),
        reason=event.value,
        notice_at=commit.at,
        reclaim_at=commit.at + 1000 * lease.notice_seconds,
        compensation=compensation,
    )
    commit.change_lease(lease)
    return lease


def _compensate(commit: Commit, lease: Lease, amount: int, funds: Mapping[str, int]) -> None:
    if funds and sum(funds.values()) != amount:
        raise BrokenPromise(f"lease {lease.id}: the funds pay {funds}, and {amount} is owed")
    for name, part in funds.items() or ((lease.pool, amount),):
        if part:
            commit.transfer(
                transfer_id(f"compensation/{lease.id}", name, funds),
                TransferKind.COMPENSATION,
                debit=fund_of(name),
                credit=lease.wallet,
                amount=part,
                lease=lease.id,
            )


def void(commit: Commit, id: str, *, refund: int, funds: Mapping[str, int] = _ITS_OWN) -> Lease:
    """
    End a lease that was outbid before it began: it gets back what it paid for leases it displaced,
    and owes no minimum. Whoever has its devices now waits for those that still use them.
    """
    before = lease_by_id(commit, id)
    _compensate(commit, before, refund, funds)
    lease, _ = bill(commit, before)
    lease = msgspec.structs.replace(
        lease,
        phase=after(lease.phase, LeaseEvent.OUTBID),
        reason=LeaseEvent.OUTBID.value,
        released_at=commit.at,
        compensation=refund,
        hold="",
    )
    commit.change_lease(lease)
    leaving = [lease_by_id(commit, other) for other in before.waits_for]
    for waiting in commit.live_leases():
        if id in waiting.waits_for:
            devices = {device.whole for device in waiting.devices}
            inherited = {
                other.id
                for other in leaving
                if not devices.isdisjoint(device.whole for device in other.devices)
            }
            _wait_for(commit, waiting, {*waiting.waits_for, *inherited} - {id})
    return lease


def _wait_for(commit: Commit, lease: Lease, leaving: Collection[str]) -> None:
    """Set the leases that a lease waits for; it is ready once there are none."""
    commit.change_lease(
        msgspec.structs.replace(
            lease,
            waits_for=tuple(sorted(leaving)),
            ready=not leaving,
            ready_at=0 if leaving else commit.at,
        )
    )


def breach(commit: Commit, id: str, *, unused: bool = False) -> Lease:
    """
    Record that a device of the lease is gone: its rent stops here, and giving it back costs nothing
    more. A lease that was `unused`, because its device was never made ready, does not owe the rent
    since its last bill either.
    """
    lease = lease_by_id(commit, id)
    meter = lease.meter(commit.at)
    if unused and lease.settled_at == lease.active_at:
        ahead = lease.charged - lease.displacement  # by versions in which rent was paid ahead
        meter = Meter(-ahead * MICRO_CREDIT, commit.at)  # as it was when it began
    lease = metered(msgspec.structs.replace(lease, breached_at=commit.at), meter)
    commit.change_lease(lease)
    return lease


def mend(commit: Commit, id: str) -> Lease:
    """
    Record that the device is back: rent runs again from here. The time in between is not charged.
    """
    lease = lease_by_id(commit, id)
    lease = msgspec.structs.replace(lease, breached_at=0, charged_until=commit.at)
    commit.change_lease(lease)
    return lease


def release(commit: Commit, id: str, event: LeaseEvent) -> Lease:
    """
    End a lease: bill it a last time, return the rest of the hold, and serve those that waited for
    it.
    """
    before = lease_by_id(commit, id)
    is_void = before.breached_at or event is LeaseEvent.INVENTORY_CHANGED
    lease, _ = bill(commit, before, least=0 if is_void else before.minimum)
    lease = msgspec.structs.replace(
        lease,
        phase=after(lease.phase, event),
        reason=lease.reason or event.value,
        released_at=commit.at,
        hold="",
    )
    commit.change_lease(lease)
    for waiting in commit.live_leases():
        if id in waiting.waits_for:
            _wait_for(commit, waiting, {*waiting.waits_for} - {id})
    return lease
