"""
What has become of leases since the last round: claimed, left, idle, or lost with their devices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bidplane.api.lease import Device, Phase
from bidplane.core.lease import Event
from bidplane.exchange.inventory import Stock
from bidplane.exchange.snapshot import Snapshot
from bidplane.exchange.using import idle_window
from bidplane.ledger import leases
from bidplane.ledger.commit import Commit
from bidplane.ledger.records import Lease

# A node that is not ready for so long has lost what ran on it, as far as money goes. It is told
# to be not ready 40 s after its last heartbeat, and its pods leave it after five minutes.
NOT_READY_SECONDS = 60


def lost_nodes(commit: Commit, snapshot: Snapshot) -> set[str]:
    return {node for node, since in snapshot.down.items() if commit.at >= since + _grace_of(since)}


def _grace_of(since: int) -> int:
    return 1000 * NOT_READY_SECONDS if since else 0  # one that is gone comes back as another


def _is_on(lease: Lease, nodes: Collection[str]) -> bool:
    return bool(nodes) and any(device.node in nodes for device in lease.devices)


def observe(commit: Commit, snapshot: Snapshot, lost: Collection[str]) -> None:
    for lease in commit.live_leases():
        if lease.id in snapshot.void and lease.phase is Phase.PENDING:
            leases.release(commit, lease.id, Event.INVENTORY_CHANGED)
        elif lease.id in snapshot.left:
            # Whoever leaves a node that is lost was left by it.
            if lease.phase is not Phase.PENDING and _is_on(lease, lost) and not lease.breached_at:
                leases.breach(commit, lease.id)
            leases.release(commit, lease.id, Event.LEFT)
    # Claims after releases: one may have made the other's devices free. Both before
    # lateness is judged: the exchange may have been away while the claim was made.
    for lease in commit.live_leases():
        if lease.id in snapshot.up:
            leases.note_up(commit, lease.id)
        if lease.phase is Phase.PENDING and (lease.claimed or lease.id in snapshot.claimed):
            leases.claim(commit, lease.id)
        elif leases.is_unclaimed(lease, commit.at):
            leases.release(commit, lease.id, Event.UNCLAIMED)


def note_idle(commit: Commit, snapshot: Snapshot) -> None:
    """
    What GPUs tell of themselves decides; where they tell nothing, a lease that no pod has been
    on for as long is idle, too. All else counts as in use.
    """
    windows = {pool.name: pool.idle_seconds for pool in snapshot.pools}
    for lease in commit.live_leases():
        window = 1000 * idle_window(lease, windows)
        if lease.phase is not Phase.ACTIVE:
            continue
        since = snapshot.idle.get(lease.id, 0)
        if not since and lease.id in snapshot.unused and lease.id not in snapshot.used:
            left = max(snapshot.unused[lease.id], lease.active_at)
            since = left if commit.at >= left + window else 0
        since = since if window else 0
        if bool(since) != bool(lease.idle_since):
            leases.note_idle(commit, lease.id, since)


def breach(
    commit: Commit, stock: Sequence[Stock], unusable: Collection[str], lost: Collection[str]
) -> None:
    """
    A running lease whose device is gone, alone or with its node, or could not be made ready,
    pays no more from now on, and pays again when it is back. One that was won and has not begun
    is void: its holder bids anew. What is only kept for somebody is not a sale yet.
    """
    here: dict[str, set[Device]] = {}
    closed: set[Device] = set()
    for item in stock:
        here.setdefault(item.pool.name, set()).update(item.where)
        closed.update(item.closed)
    for lease in commit.live_leases():
        if any(pool not in here for pool in lease.pool_names):
            continue
        devices = [device.whole for device in lease.devices]
        there = [here[pool] for pool in lease.pool_names]
        gone = any(all(device not in some for some in there) for device in devices)
        gone = gone or _is_on(lease, lost)
        if lease.phase is Phase.PENDING:
            if gone or (lease.is_kept and not closed.isdisjoint(devices)):
                leases.release(commit, lease.id, Event.INVENTORY_CHANGED)
        elif (gone or lease.id in unusable) and not lease.breached_at:
            leases.breach(commit, lease.id, unused=lease.id in unusable)
        elif lease.breached_at and not gone and lease.id not in unusable:
            leases.mend(commit, lease.id)
