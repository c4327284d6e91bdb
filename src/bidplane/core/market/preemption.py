"""
Running leases are contestable, not fragile.

A running lease ranks above its bid by what its restart would cost, so that only a bid
that is worth the interruption displaces it. What it then loses is paid back at once,
from the pool's fund, and whoever displaced it pays as much into the fund in the same
commit, as rent ahead of its first second. So the fund revolves: displacing never
shrinks it, and a levy on every rent lets it grow with the prices it must cover.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bidplane.api.money import cost, rent
from bidplane.core.market.model import ONE, Ask, Incumbent
from bidplane.core.placement import Seat

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
    Depends on the pool's terms alone, never on how long ago the lease saved its work:
    else agents would gain by not saving it.
    """
    restart_cost = ONE * (notice_seconds + restart_seconds) // PAYBACK_SECONDS
    return min(MOST_WEIGHT, ONE + ONE * HYSTERESIS_PERCENT // 100 + restart_cost + age)


# A bid that has waited for half an hour ranks half as high again as it bids.
AGE_SECONDS = 1800
MOST_AGE = ONE // 2


def age(waited_seconds: int) -> int:
    """What waiting adds to a bid's rank weight; its lease keeps it, or it would be lost again."""
    return MOST_AGE * min(max(0, waited_seconds), AGE_SECONDS) // AGE_SECONDS


def compensation(
    *, price: int, weight: int, notice_seconds: int, restart_seconds: int, paid: int
) -> int:
    """
    What a displaced lease is owed: the time it loses, at its price; never more than the
    rent it has paid, or else an agent could come only to be displaced.
    """
    return min(paid, rent(price, weight, notice_seconds + restart_seconds))


def levy(rent: int, percent: int) -> int:
    """The part of a rent that goes to the pool's fund."""
    return rent * percent // 100


def levy_percent(restart_seconds: int, light_seconds: int, notice_seconds: int) -> int:
    """
    In proportion to what a displaced lease of that class may cost the fund: who ranks
    higher for a heavy restart pays for it.
    """
    light = max(1, light_seconds + notice_seconds)
    part = LEVY_PERCENT * (restart_seconds + notice_seconds) // light
    return min(MOST_LEVY_PERCENT, max(LEVY_PERCENT, part))


# An agent's restart class is its policy's word. Once so many starts were measured, and they took
# less than half of what a heavy restart is said to, it is light.
STARTS_LEAST = 3


def smoothed(starts: int, average: int, took: int) -> int:
    """How long starts take on average, the last few above all."""
    return took if starts == 0 else (3 * average + took) // 4


def is_demoted(starts: int, average_ms: int, heavy_seconds: int) -> bool:
    return starts >= STARTS_LEAST and 2 * average_ms < 1000 * heavy_seconds


# A term is bought with the lead that a running lease would have had without it.
TERM_PREMIUM_PERCENT = 25


def seed(price: int, devices: int, notice_seconds: int, restart_seconds: int) -> int:
    """
    What the owner puts into a pool's fund: every lease displaced once, at `price`. With
    an empty fund the first leases could not be displaced at any price.
    """
    return cost(price, devices, notice_seconds + restart_seconds)


def seed_price(floor: int, base: int) -> int:
    """
    The price a fund is seeded for: the floor, doubled until it is what the pool sells at.
    In steps, so that a price that drifts is not a transfer each second. No agent can draw
    the seed out: what the fund pays for a displaced lease, its preemptor has paid in.
    """
    while floor < base:
        floor *= 2
    return floor


def protected_by_fund(incumbents: Iterable[Incumbent], fund: int) -> set[str]:
    """The leases that leave the contest, highest key first, until the fund covers the rest."""
    ranked = sorted(incumbents, key=lambda i: (-i.price * i.weight, i.tie, i.id))
    exposure = sum(i.compensation for i in ranked)
    protected: set[str] = set()
    for incumbent in ranked:
        if exposure <= fund:
            break
        if incumbent.compensation:
            protected.add(incumbent.id)
            exposure -= incumbent.compensation
    return protected


def dues(
    seats: Mapping[str, Seat], asks: Mapping[str, Ask], incumbents: Mapping[str, Incumbent]
) -> dict[tuple[str, str], int]:
    """
    Who owes whom: by (ask, lease), the part of the lease's compensation that the ask
    caused, in proportion to what it takes of it. None between agents of one owner, or
    an owner with two agents could empty the fund by displacing itself.
    """
    takers: dict[str, dict[str, int]] = {}
    for ask, seat in seats.items():
        for lease, count in seat.taken_from.items():
            takers.setdefault(lease, {})[ask] = count
    owed: dict[tuple[str, str], int] = {}
    for lease, counts in takers.items():
        displaced = incumbents[lease]
        for ask, count in counts.items():
            foreign = asks[ask].owner != displaced.owner
            share = displaced.compensation * count // sum(counts.values())
            owed[ask, lease] = share if foreign else 0
    return owed
