"""
Time as an argument.

Only the outermost code reads the system's clock. Code that waits or writes a time gets a `Clock`;
the simulator passes one that jumps.
"""

from __future__ import annotations

import asyncio
import functools
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time that can be waited on."""

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
    """Format as a metav1.Time: whole seconds, UTC."""
    return _format_seconds(int(seconds))


@functools.lru_cache(maxsize=16)  # every write needs it, mostly for the same second
def _format_seconds(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """Format as a metav1.MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> float:
    """Seconds since the epoch; raises ValueError for text that is not a time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
