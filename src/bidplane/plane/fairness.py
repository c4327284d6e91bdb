"""
Fairness between planes: a busy plane's requests wait for that plane's own.

A plane has at most `SHARE` requests at work; more of its own wait in line, and when a seat is
free the planes that wait are served in rotation, one request each. A line that is full answers
429 at once. Watches and logs take no seat, they are counted. A list of many objects, or of large
ones, needs a snapshot of them, and keeps them in memory when they are replaced meanwhile: a plane
has few of those at a time, and few bytes in them. How much work each request may do in one turn of
the event loop is in `turns`; how many bytes may wait for their readers, in `output`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import TracebackType
from weakref import WeakValueDictionary

from bidplane.plane.output import OutputBudget
from bidplane.wire import status

SEATS = 64
SHARE = 32  # of one plane
LINE = 256  # requests of one plane that wait
STREAMS = 5000  # of one plane, open at a time
SNAPSHOTS = 4  # of one plane
SNAPSHOT_BYTES = 128 << 20  # of the objects in them; one snapshot may be of any size
RETRY_SECONDS = 1


def too_many(kind_of_requests: str) -> status.StatusError:
    """Return the refusal 429 of a plane that has too many requests of this kind."""
    return status.refuse(
        429,
        "TooManyRequests",
        f"this plane has too many {kind_of_requests}, please try again later",
        retry_after=RETRY_SECONDS,
    )


class _Line:
    __slots__ = (
        *("at_work", "for_snapshots", "snapshot_bytes", "snapshots", "streams", "waiting"),
    )

    def __init__(self) -> None:
        self.at_work = 0
        self.streams = 0
        self.snapshots = self.snapshot_bytes = 0
        self.for_snapshots: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.waiting: deque[asyncio.Future[None]] = deque()


class RequestSeat:
    """`async with fairness.seat(plane):` holds a seat."""

    __slots__ = ("_fairness", "_plane")

    def __init__(self, fairness: Fairness, plane: str) -> None:
        self._fairness, self._plane = fairness, plane

    async def __aenter__(self) -> None:
        await self._fairness.acquire(self._plane)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._fairness.release(self._plane)


class SnapshotSeat:
    """One of the snapshots of a plane, until it is released."""

    __slots__ = ("_fairness", "_plane", "_size")

    def __init__(self, fairness: Fairness, plane: str, size: int) -> None:
        self._fairness: Fairness | None = fairness
        self._plane, self._size = plane, size

    def release(self) -> None:
        fairness, self._fairness = self._fairness, None
        if fairness is not None:
            fairness.release_snapshot(self._plane, self._size)


class Fairness:
    def __init__(self, *, seats: int = SEATS, share: int = SHARE, line: int = LINE) -> None:
        self._free, self._share, self._limit = seats, share, line
        self._lines: OrderedDict[str, _Line] = OrderedDict()  # in the order of their next turn
        # As long as a request has one: all requests of a plane have the same.
        self._outputs: WeakValueDictionary[tuple[str, bool], OutputBudget] = WeakValueDictionary()

    def __repr__(self) -> str:
        waiting = sum(len(line.waiting) for line in self._lines.values())
        return f"<Fairness [{self._free} free, {waiting} waiting, {len(self._lines)} planes]>"

    def seat(self, plane: str) -> RequestSeat:
        return RequestSeat(self, plane)

    async def acquire(self, plane: str) -> None:
        """Wait until it is this request's turn; raise 429 when its plane's line is full."""
        line = self._lines.setdefault(plane, _Line())
        if self._free and line.at_work < self._share and not line.waiting:
            self._take(line)
            return
        if len(line.waiting) >= self._limit:
            raise too_many("requests")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(plane)  # its turn had come: the next in line takes it
            else:
                with contextlib.suppress(ValueError):
                    line.waiting.remove(turn)
                self._forget(plane, line)
            raise

    def _take(self, line: _Line) -> None:
        self._free -= 1
        line.at_work += 1

    def release(self, plane: str) -> None:
        """Give the seat of a request back, and call the next."""
        line = self._lines[plane]
        line.at_work -= 1
        self._free += 1
        self._forget(plane, line)
        self._call_next()

    def _call_next(self) -> None:
        while self._free:
            name = next(filter(self._has_turn, self._lines), None)
            if name is None:
                return
            line = self._lines[name]
            turn = line.waiting.popleft()
            self._lines.move_to_end(name)
            if not turn.done():
                self._take(line)
                turn.set_result(None)

    def _has_turn(self, plane: str) -> bool:
        line = self._lines[plane]
        return bool(line.waiting) and line.at_work < self._share

    def _forget(self, plane: str, line: _Line) -> None:
        idle = not line.at_work and not line.waiting and not line.streams
        if idle and not line.snapshots and not line.for_snapshots:
            self._lines.pop(plane, None)

    def output(self, plane: str, *, streams: bool) -> OutputBudget:
        """
        Return the bytes that wait for the readers of a plane: of its watches, or of its answers,
        which do not wait for a watch that nobody reads.
        """
        output = self._outputs.get((plane, streams))
        if output is None:
            output = self._outputs[plane, streams] = OutputBudget()
        return output

    async def snapshot(self, plane: str, size: int = 0) -> SnapshotSeat:
        """
        Wait until the plane may have one more snapshot, of `size` bytes; raise 429 when too many
        requests wait.
        """
        line = self._lines.setdefault(plane, _Line())
        if not line.for_snapshots and _has_room(line, size):
            line.snapshots += 1
            line.snapshot_bytes += size
            return SnapshotSeat(self, plane, size)
        if len(line.for_snapshots) >= self._limit:
            raise too_many("large lists")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.for_snapshots.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release_snapshot(plane, size)
            else:
                with contextlib.suppress(ValueError):
                    line.for_snapshots.remove((size, turn))
                self._next_snapshots(plane, line)
            raise
        return SnapshotSeat(self, plane, size)

    def release_snapshot(self, plane: str, size: int) -> None:
        line = self._lines[plane]
        line.snapshots -= 1
        line.snapshot_bytes -= size
        self._next_snapshots(plane, line)

    def _next_snapshots(self, plane: str, line: _Line) -> None:
        while line.for_snapshots and _has_room(line, line.for_snapshots[0][0]):
            size, turn = line.for_snapshots.popleft()
            if not turn.done():
                line.snapshots += 1
                line.snapshot_bytes += size
                turn.set_result(None)
        self._forget(plane, line)

    @contextlib.contextmanager
    def stream(self, plane: str) -> Iterator[None]:
        """Count a watch or a log while it is open."""
        line = self._lines.setdefault(plane, _Line())
        if line.streams >= STREAMS:
            raise too_many("open watches")
        line.streams += 1
        try:
            yield
        finally:
            line.streams -= 1
            self._forget(plane, line)


def _has_room(line: _Line, size: int) -> bool:
    """Return whether a plane may have one more snapshot of `size` bytes."""
    if not line.snapshots:
        return True
    return line.snapshots < SNAPSHOTS and line.snapshot_bytes + size <= SNAPSHOT_BYTES
