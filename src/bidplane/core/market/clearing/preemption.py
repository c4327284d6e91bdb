"""
Running leases are contestable, not fragile.

A running lease ranks above its bid by what its restart would cost, so that only a bid
that is worth the interruption displaces it. What it then loses is paid back at once, by
whoever displaces it (`liability`), beside that one's rent. No lease is protected: whoever can
pay for what it outranks has it.
"""

from __future__ import annotations

from bidplane.api.money import rent
from bidplane.core.market.model import ONE

# A newcomer must be 5 % better even if a restart were free: equal bids never swap places.
HYSTERESIS_PERCENT = 5
# An interruption must pay off within this many seconds of the better bid's running. 300
# gave the most value in the model (research: "checkpoint on notice, τ = 300"); with
# notice and restart of 30 s each a running lease ranks at 1.25 of its bid.
PAYBACK_SECONDS = 300
MOST_WEIGHT = 3 * ONE  # whatever a pool declares, a bid three times as high gets through

MOST_LEVY_PERCENT = 25
LEVY_PERCENT = 5  # of every rent, into the pool's fund


def incumbent_weight(notice_seconds: int, restart_seconds: int, age: int = 0) -> int:
    """
    The rank weight of a running lease. It depends on the pool's terms alone, never on how long ago
    the lease saved its work: else agents would gain by not saving it.
    """
    restart_cost = ONE * (notice_seconds + restart_seconds) // PAYBACK_SECONDS
    return min(MOST_WEIGHT, ONE + ONE * HYSTERESIS_PERCENT // 100 + restart_cost + age)


# A bid that has waited for half an hour ranks half as high again as it bids.
AGE_SECONDS = 1800
MOST_AGE = ONE // 2


def age(waited_seconds: int) -> int:
    """The rank weight that waiting adds to a bid; its lease keeps it, or it would be lost again."""
    return MOST_AGE * min(max(0, waited_seconds), AGE_SECONDS) // AGE_SECONDS


def compensation(
    *, price: int, weight: int, notice_seconds: int, restart_seconds: int, paid: int
) -> int:
    """
    The compensation of a displaced lease: the time it loses, at its price; never more than the rent
    it has paid, or else an agent could come only to be displaced.
    """
    return min(paid, rent(price, weight, notice_seconds + restart_seconds))


def levy(rent: int, percent: int) -> int:
    """The part of a rent that goes to the pool's fund."""
    return rent * percent // 100


def levy_percent(restart_seconds: int, light_seconds: int, notice_seconds: int) -> int:
    """
    The percentage of the rent that is levied: in proportion to what displacing a lease of that
    class costs others, so that a class that ranks higher for a heavy restart pays for it.
    """
    light = max(1, light_seconds + notice_seconds)
    part = LEVY_PERCENT * (restart_seconds + notice_seconds) // light
    return min(MOST_LEVY_PERCENT, max(LEVY_PERCENT, part))


# An agent's restart class is its policy's word. Once so many starts were measured, and they took
# less than half of what a heavy restart is said to, it is light.
STARTS_LEAST = 3


def smoothed(starts: int, average: int, took: int) -> int:
    """The moving average of how long starts take, which weighs the last few most."""
    return took if starts == 0 else (3 * average + took) // 4


def is_demoted(starts: int, average_ms: int, heavy_seconds: int) -> bool:
    return starts >= STARTS_LEAST and 2 * average_ms < 1000 * heavy_seconds


# A term is bought with the lead that a running lease would have had without it.
TERM_PREMIUM_PERCENT = 25
