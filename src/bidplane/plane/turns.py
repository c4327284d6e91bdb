"""
Long computations in slices: one slice in each turn of the event loop, planes in rotation.

A list of 100,000 objects takes a second of work. It is done in slices of well under a
millisecond, and however many such requests there are, one slice runs between two looks at the
sockets. So a neighbour's request waits for one slice, not for a list.

Work is counted in bytes of objects that were looked at, not in time: a run can be repeated.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

SLICE = 96 << 10  # bytes of objects
BURST = 2  # requests of one plane that may begin in one turn of the loop; the next wait for theirs
CHARACTER = 6  # bytes that a character of a selector counts for, with each object
_EACH = 256  # bytes that looking at an object counts for, beside its own


class Turns:
    """Shared by all planes of a process."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._pumping = False
        self._begun: dict[str, int] = {}  # requests in this turn of the loop, by plane

    def begin(self, plane: str) -> bool:
        """
        Count a request of `plane`. Return True if it is among the first of this turn of the loop
        and may begin at once; else it must await `next`.
        """
        if plane in self._lines:
            return False  # behind those that wait
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._begun.clear)
        count = self._begun.get(plane, 0)
        self._begun[plane] = count + 1
        return count < BURST

    async def next(self, plane: str) -> None:
        """Wait for the turn of `plane`."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._lines.setdefault(plane, deque()).append(turn)
        if not self._pumping:
            self._pumping = True
            loop.call_soon(self._pump)
        await turn

    def _pump(self) -> None:
        while self._lines:
            plane, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[plane] = line  # at the end of the rotation
            if not turn.done():
                turn.set_result(None)
                break
        if self._lines:
            asyncio.get_running_loop().call_soon(self._pump)
        else:
            self._pumping = False


class WorkSlice:
    """
    The work of one request. Its first slice is free: most requests need no other.

        if slice.spend(len(item.raw)):
            await slice.rest()
    """

    __slots__ = ("_left", "_plane", "_turns")

    def __init__(self, turns: Turns, plane: str) -> None:
        self._turns, self._plane = turns, plane
        self._left = SLICE

    def spend(self, size: int) -> bool:
        """Count one object of `size` bytes; true when the slice is used up."""
        self._left -= size + _EACH
        return self._left < 0

    async def rest(self) -> None:
        """Wait until the next slice may begin."""
        await self._turns.next(self._plane)
        self._left = SLICE
