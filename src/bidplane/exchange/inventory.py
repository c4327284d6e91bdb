"""
From devices and leases to what a round sells: lots, their domains, and who sits where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from bidplane.api.lease import Device, Phase
from bidplane.core.market import Domain, Incumbent, preemption
from bidplane.core.market.model import ONE
from bidplane.exchange.snapshot import DeviceView, PoolView
from bidplane.ledger.records import Lease


class Stock(msgspec.Struct, frozen=True, kw_only=True):
    """The devices one pool sells."""

    pool: PoolView
    domains: Mapping[str, tuple[Device, ...]]

    @property
    def devices(self) -> int:
        return sum(len(devices) for devices in self.domains.values())


def stocks(pools: Iterable[PoolView], devices: Iterable[DeviceView]) -> list[Stock]:
    """Each device in one pool: of two that want its product, the first by name."""
    claimed: dict[str, PoolView] = {}
    ordered = sorted(pools, key=lambda pool: pool.name)
    for pool in ordered:
        claimed.setdefault(pool.product, pool)
    by_pool: dict[str, dict[str, dict[Alike, set[Device]]]] = {pool.name: {} for pool in ordered}
    for view in devices:
        seller = claimed.get(view.product)
        if seller is not None:
            alike = tuple(view.traits.get(name, "") for name in seller.sell_by)
            groups = by_pool[seller.name].setdefault(view.domain, {})
            groups.setdefault(alike, set()).add(view.device)
    return [Stock(pool=pool, domains=_cut(by_pool[pool.name])) for pool in ordered]


Alike: TypeAlias = tuple[str, ...]  # what devices have in common that are sold together


def _cut(domains: Mapping[str, Mapping[Alike, set[Device]]]) -> dict[str, tuple[Device, ...]]:
    """
    A link domain whose devices are not all alike is as many domains: three GPUs with
    sixteen lanes and one with four are three and one, never a block of four.
    """
    found = {}
    for name, groups in sorted(domains.items()):
        for alike, members in sorted(groups.items()):
            part = name if len(groups) == 1 else f"{name} ({', '.join(alike)})"
            found[part] = tuple(sorted(members))
    return found


def domains(stock: Stock, leases: Iterable[Lease]) -> tuple[Domain, ...]:
    """What the market sees of a stock: how large each domain is, and what nobody holds."""
    held = {device for lease in leases for device in lease.devices}
    return tuple(
        Domain(
            name=name,
            size=len(members),
            free=tuple(device_key(device) for device in members if device not in held),
        )
        for name, members in stock.domains.items()
    )


def incumbents(stock: Stock, leases: Iterable[Lease], *, base: int, at: int) -> list[Incumbent]:
    """
    The running leases that others may displace. A lease that waits or drains is out of
    the contest, with its devices; so is one whose devices are no longer for sale here.
    """
    where = {device: name for name, members in stock.domains.items() for device in members}
    found = []
    for lease in leases:
        if lease.phase is not Phase.ACTIVE or lease.pool != stock.pool.name:
            continue
        seats: dict[str, list[str]] = {}
        for device in lease.devices:
            seats.setdefault(where.get(device, ""), []).append(device_key(device))
        if "" in seats:
            continue
        gang = {name: tuple(found) for name, found in sorted(seats.items())}
        found.append(
            Incumbent(
                id=lease.id,
                agent=lease.agent,
                owner=lease.owner,
                lot=lease.pool,
                domain=next(iter(gang)),
                devices=tuple(device_key(device) for device in lease.devices),
                price=lease.max_price,
                weight=_weight(lease, at),
                reserve=min(lease.win_base, base),
                compensation=preemption.compensation(
                    price=lease.price,
                    gpus=lease.gpus,
                    notice_seconds=lease.notice_seconds,
                    restart_seconds=lease.restart_seconds,
                    paid=lease.charged + lease.meter(at).balance,
                ),
                tie=lease.won_at // 1000,  # before any bid's: see `Engine`
                gang=gang if len(gang) > 1 else {},
            )
        )
    return found


def _weight(lease: Lease, at: int) -> int:
    """A lease sold between rounds has outbid nobody yet: it gains no rank in its first epoch."""
    if lease.instant and at < lease.active_at + 1000 * lease.epoch_seconds:
        return ONE
    return preemption.incumbent_weight(lease.notice_seconds, lease.restart_seconds, lease.age)


def breached(stock: Stock, lease: Lease) -> bool:
    """Whether a device of one of the pool's leases is no longer among what the pool sells."""
    here = {device for members in stock.domains.values() for device in members}
    return any(device not in here for device in lease.devices)


def device_key(device: Device) -> str:
    return "/".join((device.node, device.driver, device.pool, device.name))


def by_key(stock: Stock) -> dict[str, Device]:
    return {device_key(d): d for members in stock.domains.values() for d in members}
