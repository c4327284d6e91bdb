"""
Rounds before their time. Whoever cannot wait for the second may ask for a round at once, for a
fee, whether it wins or not; an owner may do so a few times in a row, and then only as often as
its bucket fills.
"""

from __future__ import annotations

from typing import NamedTuple

from bidplane.api.money import rent
from bidplane.core.market.pricing.metering import MINIMUM_SECONDS

MOST = 5  # rounds an owner may ask for in a row
FILL_MILLISECONDS = 10_000  # until it may ask for one more


class Bucket(NamedTuple):
    """The tokens of an owner, as they were at `at`."""

    tokens: int = MOST
    at: int = 0  # milliseconds

    def take(self, now: int) -> Bucket | None:
        """Return the bucket after one token was taken; None if it has none."""
        filled = max(0, now - self.at) // FILL_MILLISECONDS
        tokens = min(MOST, self.tokens + filled)
        if not tokens:
            return None
        # The part of a token that has gathered is kept, unless the bucket was full.
        at = now if tokens == MOST else self.at + filled * FILL_MILLISECONDS
        return Bucket(tokens - 1, at)


def fee(price: int, weight: int) -> int:
    """The fee for an early round: the cost of the shortest lease at the price that is offered."""
    return rent(price, weight, MINIMUM_SECONDS)
