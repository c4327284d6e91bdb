"""
Policies of idle services, played on gaps between uses: fixed windows, the hybrid histogram of
Shahrad et al. (2020), and the least cost that is possible when the future is known.

Nothing here is shared with the policy that they are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from bidplane.bench.support.idle_uses import ServiceUses

COLD_START_SECONDS = 60.0
_MINUTE = 60.0
_HISTOGRAM_MINUTES = 240
_HEAD, _TAIL = 0.05, 0.99
_MARGIN = 0.1
_LEAST_VARIATION = 2.0  # of the bins' counts, for a histogram that tells something


class Keeping(msgspec.Struct, frozen=True):
    """The time for which an idle service is kept, and how long after its use that begins."""

    window: float
    after: float = 0.0  # more than 0: it is let go, and started again by then


class IdlePolicy(Protocol):
    """The decision of one service."""

    def decide(self) -> Keeping:
        """Return how the service is kept after the use that has just ended."""
        ...

    def note(self, gap: float) -> None:
        """Learn how long it was until the next use."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """The cost of a policy over all clients."""

    busy_seconds: float = 0.0
    idle_seconds: float = 0.0  # held without use
    cold_starts: int = 0  # that a request waited for
    early_starts: int = 0  # before a request came

    @property
    def gpu_hours(self) -> float:
        starting = COLD_START_SECONDS * (self.cold_starts + self.early_starts)
        return (self.busy_seconds + self.idle_seconds + starting) / 3600

    @property
    def waiting_hours(self) -> float:
        return COLD_START_SECONDS * self.cold_starts / 3600

    def cost_hours(self, worth: float) -> float:
        """Return the cost of idleness in hours of rent; a cold start costs `worth` seconds."""
        early = COLD_START_SECONDS * self.early_starts
        return (self.idle_seconds + early + worth * self.cold_starts) / 3600


def play(clients: Iterable[ServiceUses], policy: Callable[[], IdlePolicy]) -> Outcome:
    """Play a policy, anew for each client."""
    busy = idle = 0.0
    cold = early = 0
    for client in clients:
        if not client.uses:
            continue
        own = policy()
        busy += client.busy_seconds
        cold += 1  # its first use
        for gap in [*client.gaps, None]:
            keeping = own.decide()
            length = client.rest if gap is None else gap
            idle += min(max(0.0, length - keeping.after), keeping.window)
            early += bool(keeping.after) and length >= keeping.after
            in_time = keeping.after <= length <= keeping.after + keeping.window
            if gap is not None:
                cold += not in_time
                own.note(gap)
    return Outcome(busy, idle, cold, early)


def offline_optimum(clients: Iterable[ServiceUses], worth: float) -> Outcome:
    """Return the least cost with a known future: keep a gap wholly, or not at all."""
    busy = idle = 0.0
    cold = 0
    for client in clients:
        if not client.uses:
            continue
        busy += client.busy_seconds
        cold += 1
        for gap in client.gaps:
            if gap <= worth:
                idle += gap
            else:
                cold += 1
    return Outcome(busy, idle, cold)


class FixedWindow:
    """One window for all."""

    def __init__(self, seconds: float) -> None:
        self._keeping = Keeping(seconds)

    def decide(self) -> Keeping:
        return self._keeping

    def note(self, gap: float) -> None:
        pass


class HybridHistogram:
    """
    Shahrad et al.: a histogram of gaps in minutes, up to four hours; let go after a use, start
    again before the 5th percentile, keep until the 99th. Without a telling histogram, keep for all
    of its range. Their time-series forecast for gaps beyond it is left out.
    """

    def __init__(self) -> None:
        self._counts = [0] * _HISTOGRAM_MINUTES
        self._total = self._beyond = 0
        self._squares = 0

    def decide(self) -> Keeping:
        if not self._is_telling:
            return Keeping(_HISTOGRAM_MINUTES * _MINUTE)
        head, tail = self._percentile(_HEAD), self._percentile(_TAIL) + 1
        after = head * _MINUTE * (1 - _MARGIN)
        return Keeping(tail * _MINUTE * (1 + _MARGIN) - after, after)

    def note(self, gap: float) -> None:
        minute = int(gap // _MINUTE)
        if minute >= _HISTOGRAM_MINUTES:
            self._beyond += 1
            return
        self._squares += 2 * self._counts[minute] + 1
        self._counts[minute] += 1
        self._total += 1

    @property
    def _is_telling(self) -> bool:
        if not self._total or self._beyond > self._total:
            return False
        mean = self._total / _HISTOGRAM_MINUTES
        variance = self._squares / _HISTOGRAM_MINUTES - mean * mean
        return variance >= (_LEAST_VARIATION * mean) ** 2

    def _percentile(self, share: float) -> int:
        counted = 0
        for minute, count in enumerate(self._counts):
            counted += count
            if counted >= share * self._total:
                return minute
        return _HISTOGRAM_MINUTES - 1
