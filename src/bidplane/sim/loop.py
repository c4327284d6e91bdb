"""
An event loop in virtual time.

When nothing is ready to run, the loop does not wait for its next timer: it sets its clock to it. An
hour of sleeping takes only as long as the work done in it, and events happen in the order of their
times, the same on every run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")

# An arbitrary fixed time, easy to tell from a real one.
EPOCH = 1_700_000_000.0


class _JumpingSelector(selectors.SelectSelector):
    """A selector that waits by moving the clock. Its only socket is the loop's own waker."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("the simulation is stuck: nothing is ready and no timer is set")
        if not ready and timeout:
            self.elapsed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # A timer is due once it is less than this away. The default, a nanosecond, is lost
        # in a float after a hundred days: then a timer that is due now never would be.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.elapsed


class VirtualClock:
    """A `Clock` for use inside a `VirtualLoop`."""

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
