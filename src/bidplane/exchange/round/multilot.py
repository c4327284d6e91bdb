"""
Bids and leases of several lots: their holds, their terms, and the lots they compete in.

A lease of several lots is one row with one hold and one price. Its terms are the strictest of
its pools', so that none of them is promised less than it asks of others; its levy goes to each
pool's fund by how much it has of that pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from bidplane.api.lease import DeviceRef
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.market import Incumbent, Won
from bidplane.exchange.instantsales import terms_for
from bidplane.exchange.round.incumbents import is_contested, owed_to, rank_weight
from bidplane.exchange.round.inventory import LotDevices, device_key
from bidplane.exchange.snapshot import PoolView
from bidplane.ledger.leases import Terms, shared_out
from bidplane.ledger.records import Account, Lease, PoolPart


def strictest(terms: Iterable[Terms]) -> Terms:
    """The terms that satisfy all of `terms`: the longest of each time."""
    return Terms(*map(max, zip(*terms, strict=True)))


def terms_in(
    pools: Iterable[PoolView], wallet: Account | None, *, heavy: bool
) -> tuple[Terms, int]:
    """
    The terms on which a lease of these pools is won, and the percentage of its rent that is levied.
    """
    terms_and_levies = [terms_for(pool, wallet, heavy=heavy) for pool in pools]
    return strictest(terms for terms, _ in terms_and_levies), max(
        levy for _, levy in terms_and_levies
    )


def seat(stocks: Mapping[str, LotDevices], won: Won) -> tuple[DeviceRef, ...]:
    """The devices that a winner of several lots gets."""
    by_key = {key: device for lot in won.by_lot for key, device in stocks[lot].by_key.items()}
    return tuple(by_key[key] for key in won.devices)


def base(bases: Mapping[str, int], won: Won) -> int:
    """The award's base price per GPU, weighted by GPUs where it spans several lots."""
    if not won.by_lot:
        return bases[won.lot]
    return sum(bases[lot] * gpus for lot, gpus in won.by_lot.items()) // won.gpus


def by_pool(stocks: Mapping[str, LotDevices], by_lot: Mapping[str, int]) -> dict[str, int]:
    """Sum amounts per lot into amounts per pool."""
    totals: dict[str, int] = {}
    for lot, amount in by_lot.items():
        pool = stocks[lot].pool.name
        totals[pool] = totals.get(pool, 0) + amount
    return totals


def pools_of(
    stocks: Mapping[str, LotDevices], bases: Mapping[str, int], won: Won
) -> tuple[PoolPart, ...]:
    """The parts of an award by pool; () when all of it is in one."""
    gpus = by_pool(stocks, won.by_lot)
    if len(gpus) < 2:
        return ()
    worth = by_pool(stocks, {lot: max(1, bases[lot]) * n for lot, n in won.by_lot.items()})
    return tuple(PoolPart(name, GPU_WEIGHT * gpus[name], worth[name]) for name in sorted(gpus))


def incumbents(
    stocks: Sequence[LotDevices],
    leases: Iterable[Lease],
    *,
    in_one_lot: Collection[str],
    bases: Mapping[str, int],
    at: int,
) -> list[Incumbent]:
    """
    The running leases that have devices of several lots: won so, or their lot has split since. They
    compete in all of them, and are never moved. `in_one_lot`: the ids of the other leases.
    """
    running = []
    for lease in leases:
        if not is_contested(lease, at) or lease.id in in_one_lot or lease.share:
            continue
        if len(lease.devices) == 1:
            continue
        parts = _parts(stocks, lease)
        if parts is None or len(parts) < 2:
            continue
        gpus = {lot: sum(map(len, seats.values())) for lot, seats in parts.items()}
        now = sum(bases[lot] * n for lot, n in gpus.items()) // lease.gpus
        owed = shared_out(
            owed_to(lease, at),
            [(lot, max(1, bases[lot]) * n) for lot, n in gpus.items()],
        )
        pinned = any(device in item.closed for item in stocks for device in lease.devices)
        by_lot = [
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
        running.append(msgspec.structs.replace(by_lot[0], also=tuple(by_lot[1:])))
    return running


def _parts(stocks: Sequence[LotDevices], lease: Lease) -> dict[str, dict[str, list[str]]] | None:
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
