"""
A keyed work queue and the loop that drains it.

A key is in the queue at most once and is worked on by at most one worker, so a
reconciler never races with itself. It is told *that* something changed, never what: it
reads the caches, decides, acts, and may be run again at any time. Failures back off per
key and are forgotten on success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from bidplane.errors import AlreadyExists, ApiError, Conflict

K = TypeVar("K", bound=Hashable)

# Of a controller that writes: each waits for the disk or for another server most of the time,
# and what they write together is committed together.
WORKERS = 32
_FIRST_RETRY_SECONDS = 0.05
_LAST_RETRY_SECONDS = 10.0
_MOST_RESTING = 1024  # keys kept that may have rested long ago
_MOST_DOUBLINGS = 10  # enough to reach the last; 2.0**1024 is no float any more

log = structlog.get_logger(__name__)


class Controller(Generic[K]):
    """
    Runs `reconcile(key)` for every key added.

    `reconcile` returns the seconds after which it wants to look again, or None.

    `rest`: how many seconds a key is let be after a look, at least. For looks at much at once:
    what changes meanwhile is one look, and the first of many changes still is looked at at once.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 4,
        rest: float = 0.0,
    ) -> None:
        self.name = name
        self._reconcile = reconcile
        self._workers = workers
        self._rest = rest
        self._rested: dict[K, float] = {}  # until when
        self._queue: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()  # added while being worked on
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return (
            f"<Controller {self.name} queued {len(self._queued)}, working {len(self._working)},"
            f" waiting {len(self._timers)}, failing {len(self._failures)}>"
        )

    def add(self, key: K) -> None:
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Add `key` later; of several waits for one key the shortest counts."""
        loop = asyncio.get_running_loop()
        due = max(loop.time() + seconds, self._rested.get(key, 0.0))
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            self._working.add(key)
            try:
                again = await self._reconcile(key)
            except Exception as error:  # one key's failure must not stop the others
                self._failed(key, error)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Not us: something it waited for was cancelled.
                self._failed(key, error)
            else:
                self._failures.pop(key, None)
                if again is not None:
                    self.add_after(key, again)
            finally:
                self._working.discard(key)
            if self._rest:
                self._looked(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    def _looked(self, key: K) -> None:
        now = asyncio.get_running_loop().time()
        self._rested[key] = now + self._rest
        if len(self._rested) > _MOST_RESTING:
            self._rested = {one: until for one, until in self._rested.items() if until > now}

    def _failed(self, key: K, error: BaseException) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        doubled = _FIRST_RETRY_SECONDS * 2 ** min(failures, _MOST_DOUBLINGS)
        delay = min(doubled, _LAST_RETRY_SECONDS)
        self.add_after(key, delay)
        if isinstance(error, Conflict | AlreadyExists):
            return  # our cache was behind; the next look will not be
        if isinstance(error, ApiError):
            if failures >= 3:
                log.warning("retrying", controller=self.name, key=str(key), error=str(error))
            return
        log.error("bug in a reconciler", controller=self.name, key=str(key), exc_info=error)
