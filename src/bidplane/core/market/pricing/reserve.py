"""
The base price: the reserve of new bids. It rises with scarcity and falls while devices
idle, a little each second, so that it says something about minutes and cannot be pumped
within one round.

It is a function of the last state that was written down and of the time since, so a
quiet market needs no writing for its price to move.
"""

from __future__ import annotations

import msgspec

from bidplane.api.money import LARGEST_PRICE

# One 32nd for a fully idle or fully scarce pool in 5 s: the gain that did not oscillate
# in the model (an eighth did), spread over the seconds of the model's round.
GAIN = 32 * 5
SECONDS_MOST = 3600  # after an hour the price is at one of its ends in any case


def default_price(priority: int, list_price: int) -> int:
    """
    The offer of a bid that names no price. The list price is a constant: did it follow prices,
    bids, base price and list price would chase each other.
    """
    return min(LARGEST_PRICE, max(1, priority) * list_price)


class BasePrice(msgspec.Struct, frozen=True, kw_only=True):
    base: int
    at: int  # milliseconds
    devices: int
    leased: int
    unserved: int  # the highest price admitted and not served, 0 when all were


def bounds(base: int, *, floor: int, target_percent: int, seconds: int) -> tuple[int, int]:
    """The lowest and the highest that the base price can be `seconds` from now, whatever is bid."""

    def after(leased: int) -> int:
        # The extremes: nobody leases; everybody does, and somebody would pay anything.
        state = BasePrice(base=base, at=0, devices=1, leased=leased, unserved=1 << 62)
        moved = advance(state, 1000 * seconds, floor=floor, target_percent=target_percent)
        return moved.base

    return after(0), after(1)


def advance(last: BasePrice, at: int, *, floor: int, target_percent: int) -> BasePrice:
    """
    The base price at `at`, given the last one that was recorded and how the market was then.

    Only whole seconds count; the rest of a second is kept for the next time, so that
    looking often does not slow the price down.
    """
    base = max(last.base, floor)
    elapsed = max(0, (at - last.at) // 1000)
    now = last.at + 1000 * elapsed
    if last.devices == 0:
        return msgspec.structs.replace(last, base=base, at=now)
    # Both in hundredths of the pool, so that no fraction is lost.
    used, target = 100 * last.leased, max(1, target_percent) * last.devices
    # It falls to the floor while devices idle (a drop is rounded down, so it is at least
    # one), and rises only while somebody who offers as much goes without.
    lowest, highest = (floor, base) if used < target else (base, max(base, last.unserved))
    for _ in range(min(elapsed, SECONDS_MOST)):
        moved = base + base * (used - target) // (target * GAIN)
        moved = min(max(moved, lowest), highest)
        if moved == base:
            break
        base = moved
    return msgspec.structs.replace(last, base=base, at=now)
