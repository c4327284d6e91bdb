"""
Detection of idle leases from samples of what their GPUs do, taken every few seconds.

A lease is idle when its GPUs worked for less than 1 % of the time, on average over a whole window.
It is in use again when that average reaches 2 %, which real work does in seconds; then a new window
begins. So the state does not flap, and touching the GPU every few minutes does not pass for use.

Without data a lease is not idle: until a window is full, while a device reports nothing, and after
a minute without reports.

Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

IDLE_PERCENT = 1.0  # of the time: a lease below it for a whole window is idle
BUSY_PERCENT = 2.0  # of the time: an idle lease that reaches it is in use again
FORGET_MILLISECONDS = 60_000  # without reports for so long, the samples are dropped


class Use(msgspec.Struct, frozen=True):
    """The recent GPU use of one lease."""

    samples: tuple[tuple[int, float], ...] = ()  # milliseconds, percent; of one window
    idle_since: int = 0  # milliseconds; 0 is in use, or unknown

    @property
    def percent(self) -> float | None:
        """The average use over the samples; None without samples."""
        if not self.samples:
            return None
        return sum(percent for _, percent in self.samples) / len(self.samples)

    @property
    def is_known_used(self) -> bool:
        """True if the samples show that the lease is in use."""
        return self.percent is not None and self.percent >= BUSY_PERCENT


def see(use: Use, at: int, percent: float | None, *, window_seconds: int) -> Use:
    """Return the use with a sample taken at `at` added; None as `percent` means no report."""
    samples = list(use.samples)
    if samples and at - samples[-1][0] > FORGET_MILLISECONDS:
        use, samples = Use(), []
    if percent is None or (samples and at <= samples[-1][0]):
        return use
    samples.append((at, percent))
    window_start = at - 1000 * window_seconds
    while len(samples) > 1 and samples[1][0] <= window_start:
        del samples[0]
    updated = Use(tuple(samples), use.idle_since)
    average = updated.percent or 0.0
    if use.idle_since:
        return updated if average < BUSY_PERCENT else Use(((at, percent),))
    first = samples[0][0]
    is_idle = average < IDLE_PERCENT and first <= window_start
    return msgspec.structs.replace(updated, idle_since=first) if is_idle else updated


def together(percents: Iterable[float | None]) -> float | None:
    """
    Return the use of a lease from its devices: that of the busiest; None if any did not report.
    """
    reports = list(percents)
    reported = [percent for percent in reports if percent is not None]
    return max(reported) if reports and len(reported) == len(reports) else None
