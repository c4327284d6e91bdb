"""
A bound on the float: what one owner may buy of a pool's in any minute.

The float is small and there for everybody who cannot wait. It is filled again in each round, so
without a bound one owner could buy all of it, round after round. The bound is a part of the pool's
float, in GPUs rounded down, at least one. Sales are counted whether their leases still run or not.

The sales are those of the ledger. They are read once, and again when another exchange may have
written, so that neither a restart nor a change of leader gives anybody more.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from bidplane.api.money import GPU_WEIGHT
from bidplane.exchange.snapshot import PoolView
from bidplane.ledger import Ledger

BOUND_SECONDS = 60


class FloatSale(NamedTuple):
    """A sale from a float in the last minute."""

    at: int  # milliseconds
    owner: str
    pool: str
    weight: int  # of `GPU_WEIGHT`


class FloatBounds:
    """The sales of the last minute, by owner and pool."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sales: deque[FloatSale] | None = None  # the oldest first; None: to be read

    def forget(self) -> None:
        """Read the sales from the ledger before the next one."""
        self._sales = None

    def note(self, owner: str, pool: str, weight: int, now: int) -> None:
        """Count a sale that was committed."""
        if self._sales is not None:
            self._sales.append(FloatSale(now, owner, pool, weight))

    def allowed_at(self, owner: str, pool: PoolView, gpus: int, weight: int, now: int) -> int:
        """
        Return when an owner may buy `weight` of the pool's float, in milliseconds: `now`, or later.
        `gpus`: of the pool, in all.
        """
        bound = owner_bound(gpus, pool.float_percent, pool.float_owner_percent)
        buyer = owner, pool.name
        sales = [sale for sale in self._recent(now) if (sale.owner, sale.pool) == buyer]
        used = sum(sale.weight for sale in sales)
        moment = now
        for sale in sales:
            if used + weight <= bound:
                break
            used -= sale.weight
            moment = sale.at + 1000 * BOUND_SECONDS
        return moment

    def _recent(self, now: int) -> deque[FloatSale]:
        since = now - 1000 * BOUND_SECONDS
        if self._sales is None:
            sold = [
                FloatSale(lease.won_at, lease.owner, lease.pool, lease.weight)
                for lease in self._ledger.leases_won_after(since)
                if lease.instant
            ]
            self._sales = deque(sorted(sold))
        while self._sales and self._sales[0].at <= since:
            self._sales.popleft()
        return self._sales


def owner_bound(gpus: int, float_percent: int, owner_percent: int) -> int:
    """Return what one owner may buy of a float in a minute, by weight."""
    return GPU_WEIGHT * max(1, gpus * float_percent * owner_percent // 10_000)
