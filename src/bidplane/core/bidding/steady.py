"""
The price of a `steady` agent: what its wallet can pay for all of its work, for an hour.

All its bids without a price of their own offer the same. While a wallet is above one hourly grant,
it spends what it has saved; below, its offers fall until it spends what it is granted. So an agent
neither runs out of credits an hour before its next refill nor saves them for nothing.

Pure, and without a memory: the wallet is the state.
"""

from __future__ import annotations

from bidplane.api.money import GPU_WEIGHT

HOUR_MILLISECONDS = 3600 * 1000


def sustainable_price(*, balance: int, refill: int, since_refill: int, weight: int) -> int:
    """
    Return the price per GPU-hour at which the wallet lasts for an hour, at least one micro-credit.

    `balance`: all that the wallet has, held or not. `since_refill`: milliseconds; as much of the
    next refill counts already, so that offers do not jump each hour. `weight`: of all the work.
    """
    accrued = refill * min(since_refill, HOUR_MILLISECONDS) // HOUR_MILLISECONDS
    return max(1, (balance + accrued) * GPU_WEIGHT // max(1, weight))
