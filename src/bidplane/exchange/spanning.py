"""
Bids and leases of several lots: what one holds, on which terms it runs, and where it competes.

A lease of several lots is one row with one hold and one price. Its terms are the strictest of
its pools', so that none of them is promised less than it asks of others; its levy goes to each
pool's fund by how much it has of that pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from bidplane.api.lease import Device, Phase
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.market import Incumbent, Won, preemption
from bidplane.exchange.desk import terms_for
from bidplane.exchange.inventory import Stock, device_key
from bidplane.exchange.sitting import rank_weight
from bidplane.exchange.snapshot import PoolView
from bidplane.ledger.leases import Terms, is_protected, shared_out
from bidplane.ledger.records import Account, Lease, PoolPart


def strictest(terms: Iterable[Terms]) -> Terms:
    """All of them kept at once: the longest of each time."""
    return Terms(*map(max, zip(*terms, strict=True)))


def terms_in(
    pools: Iterable[PoolView], wallet: Account | None, *, heavy: bool
) -> tuple[Terms, int]:
    """On which a lease of these pools is won, and how much of its rent is levied."""
    found = [terms_for(pool, wallet, heavy=heavy) for pool in pools]
    return strictest(terms for terms, _ in found), max(levy for _, levy in found)


def seat(stocks: Mapping[str, Stock], won: Won) -> tuple[Device, ...]:
    """The devices that a winner of several lots gets."""
    by_key = {key: device for lot in won.by_lot for key, device in stocks[lot].by_key.items()}
    return tuple(by_key[key] for key in won.devices)


def base(bases: Mapping[str, int], won: Won) -> int:
    """The base price it was won at; of several lots, of each for as much as it has of it."""
    if not won.by_lot:
        return bases[won.lot]
    return sum(bases[lot] * gpus for lot, gpus in won.by_lot.items()) // won.gpus


def by_pool(stocks: Mapping[str, Stock], by_lot: Mapping[str, int]) -> dict[str, int]:
    """What is said by lot, by the pool it is of."""
    found: dict[str, int] = {}
    for lot, amount in by_lot.items():
        pool = stocks[lot].pool.name
        found[pool] = found.get(pool, 0) + amount
    return found


def pools_of(
    stocks: Mapping[str, Stock], bases: Mapping[str, int], won: Won
) -> tuple[PoolPart, ...]:
    """What of it is of which pool; () when all of it is of one."""
    gpus = by_pool(stocks, won.by_lot)
    if len(gpus) < 2:
        return ()
    worth = by_pool(stocks, {lot: max(1, bases[lot]) * n for lot, n in won.by_lot.items()})
    return tuple(PoolPart(name, GPU_WEIGHT * gpus[name], worth[name]) for name in sorted(gpus))


def incumbents(
    stocks: Sequence[Stock],
    leases: Iterable[Lease],
    *,
    known: Collection[str],
    bases: Mapping[str, int],
    at: int,
) -> list[Incumbent]:
    """
    The running leases that have devices of several lots: won so, or their lot has split since.
    They compete in all of them, and are never moved. `known`: those that are in one lot.
    """
    found = []
    for lease in leases:
        if lease.phase is not Phase.ACTIVE or lease.id in known or lease.share:
            continue
        if len(lease.devices) == 1 or is_protected(lease, at):
            continue
        parts = _parts(stocks, lease)
        if parts is None or len(parts) < 2:
            continue
        gpus = {lot: sum(map(len, seats.values())) for lot, seats in parts.items()}
        now = sum(bases[lot] * n for lot, n in gpus.items()) // lease.gpus
        owed = shared_out(
            preemption.compensation(
                price=lease.price,
                weight=lease.weight,
                notice_seconds=lease.notice_seconds,
                restart_seconds=lease.restart_seconds,
                paid=lease.charged + lease.meter(at).balance,
            ),
            [(lot, max(1, bases[lot]) * n) for lot, n in gpus.items()],
        )
        pinned = any(device in item.closed for item in stocks for device in lease.devices)
        made = [
            Incumbent(
                id=lease.id,
                agent=lease.agent,
                owner=lease.owner,
                lot=lot,
                domain=next(iter(seats)),
                devices=tuple(device for devices in seats.values() for device in devices),
                price=lease.max_price,
                weight=rank_weight(lease, at),
                reserve=min(lease.win_base, now),
                compensation=owed[lot],
                tie=lease.won_at // 1000,
                gang={name: tuple(devices) for name, devices in seats.items()}
                if len(seats) > 1
                else {},
                idle=bool(lease.idle_since),
                pinned=pinned,
            )
            for lot, seats in parts.items()
        ]
        found.append(msgspec.structs.replace(made[0], also=tuple(made[1:])))
    return found


def _parts(stocks: Sequence[Stock], lease: Lease) -> dict[str, dict[str, list[str]]] | None:
    """By lot and domain, the devices of a lease; None if one is not for sale in its pools."""
    mine = [item for item in stocks if item.pool.name in lease.pool_names]
    parts: dict[str, dict[str, list[str]]] = {}
    for device in lease.devices:
        item = next((item for item in mine if device in item.where), None)
        if item is None:
            return None
        seats = parts.setdefault(item.lot, {})
        seats.setdefault(item.where[device], []).append(device_key(device))
    return {lot: dict(sorted(seats.items())) for lot, seats in sorted(parts.items())}
