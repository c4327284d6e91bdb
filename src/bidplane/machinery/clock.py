"""
Time as an argument.

Nothing below the edges reads a clock. What must wait or stamp is given a `Clock`; the
simulator gives one that jumps.
"""

from __future__ import annotations

import asyncio
import functools
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def rfc3339(seconds: float) -> str:
    """A metav1.Time: whole seconds, UTC."""
    return _written(int(seconds))


@functools.lru_cache(maxsize=16)  # asked for with every write, and most are of this second
def _written(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """A metav1.MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> float:
    """Seconds since the epoch; raises ValueError for what is no time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
