"""
Windows computed from what a cold start costs, when requests came, and the GPU's price. Pure.

Keeping an idle service for a second costs a second of rent. A cold start costs its own seconds of
rent, and its client's waiting at the price that the Endpoint puts on that. Both in seconds of rent:
an idle service is worth keeping while the chance that somebody comes in the next second, times the
cost of a cold start, is above one. That chance falls with the time since the last use; how fast
differs from service to service, so it is counted: the gaps between uses that ended in each step of
time, over the time that was spent in it. Before there are gaps to count, a service is taken to be
like others.

So staying warm is a bid: at a higher price of the GPU a cold start is worth fewer seconds of it,
and the window is shorter.
"""

from __future__ import annotations

import itertools
import math

import msgspec

from bidplane.api.endpoint import EndpointSpec
from bidplane.api.idling.ladder import LadderWindows, WakeTimes
from bidplane.api.money import MICRO, parse_credits

UNKNOWN_COLD_START_SECONDS = 30.0
# Steps of time since the last use, in seconds, each √2 times as long as the one before.
STEPS = tuple(30 * 2 ** (i / 2) for i in range(23))
_COUNT = len(STEPS) - 1
_PRIOR_WEIGHT = 2.0  # in gaps
# How often a gap that lasts t seconds ends in the next t, for short and for long gaps: measured on
# half of ServeGen's clients, the half that `bidplane bench idle` does not report.
_PRIOR_SHORT, _PRIOR_LONG, _SHORT_SECONDS = 1.0, 0.4, 150.0


class Arrivals:
    """The gaps between the uses of a service, counted by their length."""

    def __init__(self) -> None:
        self.ended = [0] * _COUNT  # in each step
        self.seconds = [0.0] * _COUNT  # spent in each step

    def __repr__(self) -> str:
        return f"<Arrivals {sum(self.ended)} gaps of more than {STEPS[0]:.0f} s>"

    def add(self, gap_seconds: float) -> None:
        """Note a use that came so long after the end of the one before."""
        for step, (begin, end) in enumerate(itertools.pairwise(STEPS)):
            if gap_seconds <= begin:
                return
            self.seconds[step] += min(gap_seconds, end) - begin
            if gap_seconds <= end:
                self.ended[step] += 1
                return

    def chance(self, step: int) -> float:
        """Return the chance by which a gap that has lasted to a step ends in a second of it."""
        begin, end = STEPS[step], STEPS[step + 1]
        prior = (_PRIOR_SHORT if begin < _SHORT_SECONDS else _PRIOR_LONG) / begin
        prior_seconds = _PRIOR_WEIGHT * (end - begin)
        return (self.ended[step] + prior * prior_seconds) / (self.seconds[step] + prior_seconds)


def best_window(arrivals: Arrivals, worth: float, *, least: float, most: float) -> float:
    """
    Return the window, within bounds, of the least expected cost, where a cold start costs `worth`
    seconds of rent.
    """
    best, best_cost = least, worth
    cost, lasting = 0.0, 1.0  # the rent so far, and the share of gaps that have lasted so long
    for step in range(_COUNT):
        begin, end = max(STEPS[step], least), min(STEPS[step + 1], most)
        if end <= begin:
            continue
        chance = arrivals.chance(step)
        remaining = math.exp(-chance * (end - begin))
        cost += lasting * (1 - remaining) / chance
        lasting *= remaining
        if cost + lasting * worth < best_cost:
            best, best_cost = end, cost + lasting * worth
    return best


class WindowInputs(msgspec.Struct, frozen=True):
    """The measurements that windows are computed from."""

    wake: WakeTimes
    arrivals: Arrivals
    paid_per_hour: str = ""  # credits; "" is not known


def windows_of(spec: EndpointSpec, inputs: WindowInputs) -> LadderWindows:
    """Return the windows of an Endpoint's rungs."""
    ladder = spec.ladder
    auto, sleep = ladder.auto, ladder.sleep
    keeps = ladder.keep_lease_seconds > 0
    if auto is None:
        return LadderWindows(
            ready=spec.idle_seconds,
            asleep=sleep.seconds if sleep is not None else 0,
            stopped=ladder.keep_lease_seconds,
        )
    seconds_of_rent = 1 + _wait_ratio(auto.wait_price, inputs.paid_per_hour)
    cold = inputs.wake.released / 1000 or UNKNOWN_COLD_START_SECONDS

    def until(wake_milliseconds: int) -> int:
        """Return how long a wake that takes so long is worth avoiding."""
        worth = (wake_milliseconds / 1000 or cold) * seconds_of_rent
        least, most = auto.least_seconds, auto.most_seconds
        return round(best_window(inputs.arrivals, worth, least=least, most=most))

    # Each rung lasts for as long as a wake from the next one below is worth avoiding.
    released = until(inputs.wake.released)
    stopped = min(released, until(inputs.wake.stopped)) if keeps else released
    ready = min(stopped, until(inputs.wake.asleep)) if sleep is not None else stopped
    return LadderWindows(
        ready=ready,
        asleep=max(1, stopped - ready) if sleep is not None else 0,
        stopped=max(1, released - stopped) if keeps else 0,
    )


def _wait_ratio(wait_price: str, paid_per_hour: str) -> float:
    """Return how many seconds of rent a second of waiting is worth."""
    wait = parse_credits(wait_price)
    paid = parse_credits(paid_per_hour) if paid_per_hour else MICRO
    return wait / max(paid, 1)
