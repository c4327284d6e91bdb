"""
Turns: requests of many planes share the process so that a busy plane waits for itself.

A plane has at most `SHARE` requests at work; more of its own wait in line, and when a seat is
free the planes that wait are served in rotation, one request each. A line that is full answers
429 at once. Watches and logs take no seat, they are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import TracebackType

from bidplane.wire import status

SEATS = 64
SHARE = 32  # of one plane
LINE = 256  # requests of one plane that wait
STREAMS = 5000  # of one plane, open at a time
RETRY_SECONDS = 1


def busy(what: str) -> status.Refused:
    return status.refuse(
        429,
        "TooManyRequests",
        f"this plane has too many {what}, please try again later",
        retry_after=RETRY_SECONDS,
    )


class _Line:
    __slots__ = ("at_work", "streams", "waiting")

    def __init__(self) -> None:
        self.at_work = 0
        self.streams = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class Seat:
    """`async with fairness.seat(plane):` holds a seat."""

    __slots__ = ("_fairness", "_plane")

    def __init__(self, fairness: Fairness, plane: str) -> None:
        self._fairness, self._plane = fairness, plane

    async def __aenter__(self) -> None:
        await self._fairness.sit(self._plane)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._fairness.rise(self._plane)


class Fairness:
    def __init__(self, *, seats: int = SEATS, share: int = SHARE, line: int = LINE) -> None:
        self._free, self._share, self._limit = seats, share, line
        self._lines: OrderedDict[str, _Line] = OrderedDict()  # in the order of their next turn

    def __repr__(self) -> str:
        waiting = sum(len(line.waiting) for line in self._lines.values())
        return f"<Fairness [{self._free} free, {waiting} waiting, {len(self._lines)} planes]>"

    def seat(self, plane: str) -> Seat:
        return Seat(self, plane)

    async def sit(self, plane: str) -> None:
        """Return when it is this request's turn; 429 when its plane's line is full."""
        line = self._lines.setdefault(plane, _Line())
        if self._free and line.at_work < self._share and not line.waiting:
            self._take(line)
            return
        if len(line.waiting) >= self._limit:
            raise busy("requests")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.rise(plane)  # the turn had come: somebody else has it now
            else:
                with contextlib.suppress(ValueError):
                    line.waiting.remove(turn)
                self._forget(plane, line)
            raise

    def _take(self, line: _Line) -> None:
        self._free -= 1
        line.at_work += 1

    def rise(self, plane: str) -> None:
        line = self._lines[plane]
        line.at_work -= 1
        self._free += 1
        self._forget(plane, line)
        self._call_next()

    def _call_next(self) -> None:
        while self._free:
            name = next(filter(self._may_go, self._lines), None)
            if name is None:
                return
            line = self._lines[name]
            turn = line.waiting.popleft()
            self._lines.move_to_end(name)
            if not turn.done():
                self._take(line)
                turn.set_result(None)

    def _may_go(self, plane: str) -> bool:
        line = self._lines[plane]
        return bool(line.waiting) and line.at_work < self._share

    def _forget(self, plane: str, line: _Line) -> None:
        if not line.at_work and not line.waiting and not line.streams:
            self._lines.pop(plane, None)

    @contextlib.contextmanager
    def stream(self, plane: str) -> Iterator[None]:
        """Count a watch or a log while it is open."""
        line = self._lines.setdefault(plane, _Line())
        if line.streams >= STREAMS:
            raise busy("open watches")
        line.streams += 1
        try:
            yield
        finally:
            line.streams -= 1
            self._forget(plane, line)
