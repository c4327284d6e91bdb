"""
The limit on how often one agent may ask the exchange: a token bucket for each, refilled by the
clock.
"""

from __future__ import annotations

import math

PER_SECOND = 50.0  # requests
BURST = 100.0
HISTORY_COST = 5.0  # a page of history counts as so many requests
_FORGET_AT = 10_000  # buckets, before those that are full again are dropped


class Rates:
    def __init__(self, *, per_second: float = PER_SECOND, burst: float = BURST) -> None:
        self._per_second, self._burst = per_second, burst
        self._buckets: dict[str, tuple[float, float]] = {}  # by who asks: tokens, and when

    def take(self, caller: str, now: float, cost: float = 1.0) -> int:
        """Return 0 and count the request; or in how many seconds it would be served."""
        tokens, at = self._buckets.get(caller, (self._burst, now))
        tokens = min(self._burst, tokens + max(0.0, now - at) * self._per_second)
        if tokens < cost:
            self._buckets[caller] = tokens, now
            return max(1, math.ceil((cost - tokens) / self._per_second))
        self._buckets[caller] = tokens - cost, now
        if len(self._buckets) > _FORGET_AT:
            self._forget(now)
        return 0

    def _forget(self, now: float) -> None:
        full = self._burst / self._per_second
        self._buckets = {caller: b for caller, b in self._buckets.items() if now - b[1] < full}
