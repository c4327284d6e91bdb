"""Who runs: leases as the market sees them, where they sit and what they rank by."""

from __future__ import annotations

from collections.abc import Iterable

from bidplane.api.lease import Device, Phase
from bidplane.core.chain import Chain
from bidplane.core.market import Incumbent, preemption
from bidplane.core.market.model import ONE
from bidplane.exchange.inventory import Stock, device_key, fits_geometry
from bidplane.ledger.leases import is_protected
from bidplane.ledger.records import Lease


def incumbents(
    stock: Stock,
    leases: Iterable[Lease],
    *,
    base: int,
    at: int,
    movers: frozenset[str] = frozenset(),
    staying: frozenset[str] = frozenset(),
) -> list[Incumbent]:
    """
    The running leases that others may displace. A lease that waits, drains, or has its term
    is out of the contest, with its devices; so is one whose devices are no longer for sale
    here, or are cut otherwise than they are sold now. `movers`: wallets whose leases may move,
    but for those `staying`.
    One with a device that nobody new gets is there, and contested by nobody.
    """
    found = []
    for lease in leases:
        if lease.phase is not Phase.ACTIVE or lease.pool != stock.pool.name:
            continue
        if is_protected(lease, at):
            continue
        seats: dict[str, list[str]] = {}
        keys = tuple(map(device_key, lease.devices))
        for device, key in zip(lease.devices, keys, strict=True):
            seats.setdefault(stock.where.get(device.whole, ""), []).append(key)
        if "" in seats or not all(_is_sold(stock, device) for device in lease.devices):
            continue
        gang = {name: tuple(devices) for name, devices in sorted(seats.items())}
        leaf = stock.leaf(lease.share)
        found.append(
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
                compensation=preemption.compensation(
                    price=lease.price,
                    weight=lease.weight,
                    notice_seconds=lease.notice_seconds,
                    restart_seconds=lease.restart_seconds,
                    paid=lease.charged + lease.meter(at).balance,
                ),
                tie=lease.won_at // 1000,  # before any bid's: see `Engine`
                gang=gang if len(gang) > 1 and not lease.share else {},
                share=lease.share,
                places=tuple(
                    device.slots if leaf.in_chain else device.slots[:1] for device in lease.devices
                )
                if leaf
                else (),
                movable=lease.wallet in movers
                and lease.id not in staying
                and _can_move(lease, stock.pool.chain, at),
                idle=bool(lease.idle_since),
                pinned=any(device.whole in stock.closed for device in lease.devices),
            )
        )
    return found


def _can_move(lease: Lease, chain: Chain, at: int) -> bool:
    """
    Whether it can be asked to move: one block of a size that is sold, or one MIG instance; and
    not still where it just went. Others stay where they are: a next bid for as much would be
    sold otherwise, and what is kept for it be nobody's.
    """
    if lease.share:
        can = "/" not in lease.share and lease.gpus == 1
    else:
        can = not lease.parts and lease.gpus in chain
    return can and at >= lease.active_at + 1000 * lease.epoch_seconds


def _is_sold(stock: Stock, device: Device) -> bool:
    return not device.share or fits_geometry(stock, device)


def rank_weight(lease: Lease, at: int) -> int:
    """
    A lease sold between rounds has outbid nobody yet: it gains no rank in its first epoch. One
    that is idle loses nothing by a restart, and ranks as a bid that has just come.
    """
    if lease.idle_since:
        return ONE
    if lease.instant and at < lease.active_at + 1000 * lease.epoch_seconds:
        return ONE
    return preemption.incumbent_weight(lease.notice_seconds, lease.restart_seconds, lease.age)
