"""
Bytes on their way to the clients of one plane.

Watches, lists and large objects are sent in pieces, and a piece is made when the connection has
taken the one before. A client that reads nothing has one piece waiting, which may be as large as
an object. All watches of a plane together may have `PLANE_BYTES` waiting, and so may its answers:
whoever would send more waits until others of the same plane have read, or were cut off for not
reading.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from bidplane.http.replies import SMALL_BYTES

PLANE_BYTES = 32 << 20


class OutputBudget:
    """The bytes of one plane that are waiting for their readers."""

    __slots__ = ("__weakref__", "_limit", "_line", "used")

    def __init__(self, limit: int = PLANE_BYTES) -> None:
        self._limit = limit
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0

    def __repr__(self) -> str:
        return f"<OutputBudget [{self.used} of {self._limit} bytes, {self.waiting} waiting]>"

    @property
    def waiting(self) -> int:
        """The number of pieces that wait until there is room for them."""
        return len(self._line)

    async def take(self, size: int) -> None:
        """Wait until `size` bytes may be made; a piece of any size may, when it is the only one."""
        if not self._line and self._has_room(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)  # its turn had come
            else:
                self._line.remove((size, turn))
                self._call_next()
            raise

    def give_back(self, size: int) -> None:
        self.used -= size
        self._call_next()

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Hold room for `size` bytes; small pieces need none."""
        if size < SMALL_BYTES:
            yield
            return
        await self.take(size)
        try:
            yield
        finally:
            self.give_back(size)

    def _has_room(self, size: int) -> bool:
        return not self.used or self.used + size <= self._limit

    def _call_next(self) -> None:
        while self._line and self._has_room(self._line[0][0]):
            size, turn = self._line.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)
