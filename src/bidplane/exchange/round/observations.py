"""
The changes of leases since the last round: claimed, given back, idle, or lost with their devices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from bidplane.api.lease import DeviceRef, Phase
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.exchange.round.inventory import LotDevices
from bidplane.exchange.round.usage import idle_window
from bidplane.exchange.snapshot import HostSnapshot
from bidplane.ledger import leases
from bidplane.ledger.commit import Commit
from bidplane.ledger.records import Lease

# A node that is not ready for so long has lost what ran on it, as far as money goes. It is told
# to be not ready 40 s after its last heartbeat, and its pods leave it after five minutes.
NOT_READY_SECONDS = 60


def lost_nodes(commit: Commit, snapshot: HostSnapshot) -> set[str]:
    return {node for node, since in snapshot.down.items() if commit.at >= since + _grace_of(since)}


def _grace_of(since: int) -> int:
    return 1000 * NOT_READY_SECONDS if since else 0  # one that is gone comes back as another


def _is_on(lease: Lease, nodes: Collection[str]) -> bool:
    return bool(nodes) and any(device.node in nodes for device in lease.devices)


def observe(commit: Commit, snapshot: HostSnapshot, lost: Collection[str]) -> None:
    for lease in commit.live_leases():
        if lease.id in snapshot.void and lease.phase is Phase.PENDING:
            leases.release(commit, lease.id, LeaseEvent.INVENTORY_CHANGED)
        elif lease.id in snapshot.left:
            # Whoever leaves a node that is lost was left by it.
            if lease.phase is not Phase.PENDING and _is_on(lease, lost) and not lease.breached_at:
                leases.breach(commit, lease.id)
            leases.release(commit, lease.id, LeaseEvent.LEFT)
    # Claims after releases: one may have made the other's devices free. Both before
    # lateness is judged: the exchange may have been away while the claim was made.
    for lease in commit.live_leases():
        if lease.id in snapshot.up:
            leases.note_up(commit, lease.id)
        if lease.phase is Phase.PENDING and (lease.claimed or lease.id in snapshot.claimed):
            leases.claim(commit, lease.id)
        elif leases.is_unclaimed(lease, commit.at):
            leases.release(commit, lease.id, LeaseEvent.UNCLAIMED)


def note_idle(commit: Commit, snapshot: HostSnapshot) -> None:
    """
    Mark leases as idle. The counters of their GPUs decide; without counters, a lease that no pod
    has been on for as long is idle, too. All others count as in use.
    """
    windows = {pool.name: pool.idle_seconds for pool in snapshot.pools}
    for lease in commit.live_leases():
        window = 1000 * idle_window(lease, windows)
        if lease.phase is not Phase.ACTIVE:
            continue
        since = snapshot.idle.get(lease.id, 0)
        if not since and lease.id in snapshot.unused and lease.id not in snapshot.used:
            unused_from = max(snapshot.unused[lease.id], lease.active_at)
            since = unused_from if commit.at >= unused_from + window else 0
        since = since if window else 0
        if bool(since) != bool(lease.idle_since):
            leases.note_idle(commit, lease.id, since)


def breach(
    commit: Commit,
    stock: Sequence[LotDevices],
    unusable: Collection[str],
    lost: Collection[str],
    foreign: AbstractSet[DeviceRef] = frozenset(),
) -> None:
    """
    Stop the rent of running leases that lost a device: it is gone, alone or with its node, could
    not be made ready, or the host's own scheduler gave it to a foreign claim (`foreign`). Rent runs
    again when the device is back. A lease that was won and has not begun is void: its holder bids
    anew. A reservation is not a sale yet.
    """
    by_pool: dict[str, set[DeviceRef]] = {}
    closed: set[DeviceRef] = set()
    for item in stock:
        by_pool.setdefault(item.pool.name, set()).update(item.where)
        closed.update(item.closed)
    for lease in commit.live_leases():
        if any(pool not in by_pool for pool in lease.pool_names):
            continue
        devices = [device.whole for device in lease.devices]
        pool_devices = [by_pool[pool] for pool in lease.pool_names]
        lost_device = any(
            all(device not in members for members in pool_devices) for device in devices
        )
        lost_device = lost_device or _is_on(lease, lost) or not foreign.isdisjoint(devices)
        if lease.phase is Phase.PENDING:
            if lost_device or (lease.is_reservation and not closed.isdisjoint(devices)):
                leases.release(commit, lease.id, LeaseEvent.INVENTORY_CHANGED)
        elif (lost_device or lease.id in unusable) and not lease.breached_at:
            leases.breach(commit, lease.id, unused=lease.id in unusable)
        elif lease.breached_at and not lost_device and lease.id not in unusable:
            leases.mend(commit, lease.id)
