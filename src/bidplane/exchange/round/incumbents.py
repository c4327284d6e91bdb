"""Running leases as the market sees them: the devices they have, and their rank."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from bidplane.api.lease import DeviceRef, Phase
from bidplane.core.devices.chain import Chain
from bidplane.core.devices.ranges import occupied
from bidplane.core.market import Incumbent
from bidplane.core.market.clearing import preemption
from bidplane.core.market.model import ONE
from bidplane.exchange.round.inventory import LotDevices, device_key, fits_geometry
from bidplane.ledger.leases import is_protected
from bidplane.ledger.records import Lease


def incumbents(
    stock: LotDevices,
    leases: Iterable[Lease],
    *,
    base: int,
    at: int,
    movers: frozenset[str] = frozenset(),
    staying: frozenset[str] = frozenset(),
) -> list[Incumbent]:
    """
    The leases that others may displace: those that run, and those that were won and have not begun.
    A lease that drains, has its term, or is reserved for an agent that moves is out of the contest,
    with its devices; so is one whose devices are no longer for sale here, or are cut otherwise than
    they are sold now. One with a device that is closed to new leases is included, and contested by
    nobody. `movers`: wallets whose leases may move, except for those in `staying`.
    """
    contesting = []
    for lease in leases:
        if lease.pool != stock.pool.name or not is_contested(lease, at):
            continue
        seats: dict[str, list[str]] = {}
        keys = tuple(map(device_key, lease.devices))
        for device, key in zip(lease.devices, keys, strict=True):
            seats.setdefault(stock.where.get(device.whole, ""), []).append(key)
        if "" in seats or not all(_is_sold(stock, device) for device in lease.devices):
            continue
        gang = {name: tuple(devices) for name, devices in sorted(seats.items())}
        leaf = stock.leaf(lease.share)
        contesting.append(
            Incumbent(
                id=lease.id,
                agent=lease.agent,
                owner=lease.owner,
                lot=stock.lot,
                domain=next(iter(gang)),
                devices=keys,
                price=lease.max_price,
                weight=rank_weight(lease, at),
                reserve=min(lease.win_base, base),
                compensation=owed_to(lease, at),
                tie=lease.won_at // 1000,  # before any bid's: see `Engine`
                gang=gang if len(gang) > 1 and not lease.share else {},
                share=lease.share,
                places=tuple(
                    occupied(device) if leaf.in_chain else device.slots[:1]
                    for device in lease.devices
                )
                if leaf
                else (),
                movable=lease.phase is Phase.ACTIVE
                and lease.wallet in movers
                and lease.id not in staying
                and _can_move(lease, stock.pool.chain, at),
                idle=bool(lease.idle_since),
                pinned=any(device.whole in stock.closed for device in lease.devices),
            )
        )
    return contesting


def is_contested(lease: Lease, at: int) -> bool:
    """Return True if a bid that outranks the lease may have its devices."""
    if lease.phase is Phase.PENDING:
        # Who was moved has what it was promised. A part of a GPU that drains as a whole cannot be
        # counted as a part yet.
        return not lease.moved_from and (lease.ready or not lease.share)
    return lease.phase is Phase.ACTIVE and not is_protected(lease, at)


def _can_move(lease: Lease, chain: Chain, at: int) -> bool:
    """
    Return True if the lease can be asked to move: it is one block of a size that is sold, or one
    MIG instance, and did not just move. Others stay: their next bid for as much would be sold
    otherwise, and nobody would use the devices reserved for it.
    """
    if lease.share:
        can = not lease.devices[0].is_part and lease.gpus == 1
    else:
        can = not lease.parts and lease.gpus in chain
    return can and at >= lease.active_at + 1000 * lease.epoch_seconds


def _is_sold(stock: LotDevices, device: DeviceRef) -> bool:
    return not device.share or fits_geometry(stock, device)


def reserved(stock: LotDevices, leases: Iterable[Lease], *, at: int) -> str:
    """
    A sentence on the devices of the lot that no bid can displace now: by reason, and until when.
    """
    groups: dict[str, tuple[set[DeviceRef], list[int]]] = {}
    for lease in leases:
        devices = {device.whole for device in lease.devices if device.whole in stock.where}
        if not devices:
            continue
        if is_protected(lease, at):
            reason, until = "held for a term", lease.term_until
        elif lease.phase is Phase.DRAINING:
            reason, until = "being vacated", lease.reclaim_at
        else:
            continue
        members, ends = groups.setdefault(reason, (set(), []))
        members.update(devices)
        ends.append(until)
    parts = []
    for reason, (members, ends) in sorted(groups.items()):
        first, last = _clock(min(ends)), _clock(max(ends))
        when = f"until {first}" if first == last else f"the first until {first}, the last {last}"
        parts.append(f"{_gpus(len(members))} {reason}, {when}")
    return "; ".join(parts)


def _gpus(count: int) -> str:
    return "1 GPU is" if count == 1 else f"{count} GPUs are"


def _clock(at: int) -> str:
    """A time of the day, for people; rounded up, so that it is over by then."""
    return datetime.fromtimestamp(-(-at // 1000), UTC).strftime("%H:%M:%S UTC")


def owed_to(lease: Lease, at: int) -> int:
    """The compensation if the lease is displaced now; before it began, what it has paid itself."""
    if lease.phase is Phase.PENDING:
        return lease.displacement
    return preemption.compensation(
        price=lease.price,
        weight=lease.weight,
        notice_seconds=lease.notice_seconds,
        restart_seconds=lease.restart_seconds,
        paid=lease.charged - lease.displacement + lease.meter(at).balance,
    )


def rank_weight(lease: Lease, at: int) -> int:
    """
    The weight by which a lease ranks. A lease sold between rounds has outbid nobody yet: it gains
    no rank in its first epoch. An idle lease loses nothing by a restart, and ranks as a new bid.
    One that has not begun would lose nothing either: it ranks as its bid did.
    """
    if lease.phase is Phase.PENDING:
        return min(preemption.MOST_WEIGHT, ONE + lease.age)
    if lease.idle_since:
        return ONE
    if lease.instant and at < lease.active_at + 1000 * lease.epoch_seconds:
        return ONE
    return preemption.incumbent_weight(lease.notice_seconds, lease.restart_seconds, lease.age)
