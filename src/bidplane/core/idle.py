"""
Whether a lease is idle: what its GPUs do is looked at every few seconds, and what is known of the
last minutes decides.

A lease is idle when its GPUs worked for less than a hundredth of the time, on average over a
whole window; it is in use again when that average is two hundredths, which real work reaches
in seconds, and from then on a new window counts. So it does not go to and fro, and a touch of
the GPU every few minutes does not pass for use.

What is not known is not idle: until a window is full, where a device tells nothing, and once
nothing was told for a minute.

Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

IDLE_PERCENT = 1.0  # of the time: below it, for a whole window, it is idle
BUSY_PERCENT = 2.0  # from it on it is in use again
FORGET_MILLISECONDS = 60_000  # after so long without a word, what was known is forgotten


class Use(msgspec.Struct, frozen=True):
    """What is known of one lease."""

    samples: tuple[tuple[int, float], ...] = ()  # milliseconds, percent; of one window
    idle_since: int = 0  # milliseconds; 0 is in use, or unknown

    @property
    def percent(self) -> float | None:
        """On average; None where nothing is known."""
        if not self.samples:
            return None
        return sum(percent for _, percent in self.samples) / len(self.samples)

    @property
    def is_known_used(self) -> bool:
        return self.percent is not None and self.percent >= BUSY_PERCENT


def see(use: Use, at: int, percent: float | None, *, window_seconds: int) -> Use:
    """The same, with what was seen at `at`; None if nothing was told."""
    samples = list(use.samples)
    if samples and at - samples[-1][0] > FORGET_MILLISECONDS:
        use, samples = Use(), []
    if percent is None or (samples and at <= samples[-1][0]):
        return use
    samples.append((at, percent))
    begins = at - 1000 * window_seconds
    while len(samples) > 1 and samples[1][0] <= begins:
        del samples[0]
    seen = Use(tuple(samples), use.idle_since)
    average = seen.percent or 0.0
    if use.idle_since:
        return seen if average < BUSY_PERCENT else Use(((at, percent),))
    first = samples[0][0]
    rests = average < IDLE_PERCENT and first <= begins
    return msgspec.structs.replace(seen, idle_since=first) if rests else seen


def together(percents: Iterable[float | None]) -> float | None:
    """Of a lease's devices: it works while any does; one that tells nothing may."""
    found = list(percents)
    known = [percent for percent in found if percent is not None]
    return max(known) if found and len(known) == len(found) else None
