"""
A flag that is set once.

An `asyncio.Event` in a tenth of the memory: a thousand planes hold a dozen each, and most were set
before anyone waited.
"""

from __future__ import annotations

import asyncio


class Latch:
    """A flag that is set once and can be waited for."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Latch {'set' if self._is_set else 'not set'}>"

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self) -> None:
        if self._is_set:
            return
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        # Shielded: cancelling one waiter must not cancel the future of the others.
        await asyncio.shield(self._waiting)
