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
from bidplane.runtime.supervision import running

K = TypeVar("K", bound=Hashable)

# The workers of a controller that writes: each mostly waits for the disk or for another server,
# and concurrent writes are committed together.
WORKERS = 32
_FIRST_RETRY_SECONDS = 0.05
_LAST_RETRY_SECONDS = 10.0
_MOST_RESTING = 1024  # keys remembered before those whose rest is over are dropped
_MOST_DOUBLINGS = 10  # enough to reach the last; 2.0**1024 is no float any more

log = structlog.get_logger(__name__)


class Controller(Generic[K]):
    """
    Runs `reconcile(key)` for every key added.

    `reconcile` returns the seconds after which to run again, or None.

    `rest`: the least number of seconds between two runs for a key. For a reconciler that reads
    much at once: all changes meanwhile share one run, and a first change still runs at once.
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
        self._changed_meanwhile: set[K] = set()  # added while being worked on
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return (
            f"<Controller {self.name} queued {len(self._queued)}, working {len(self._working)},"
            f" waiting {len(self._timers)}, failing {len(self._failures)}>"
        )

    def add(self, key: K) -> None:
        """Queue `key`, once; a key that is being reconciled is queued again afterwards."""
        if key in self._working:
            self._changed_meanwhile.add(key)
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
        """Add a key whose timer has fired."""
        del self._timers[key]
        self.add(key)

    async def _work(self) -> None:
        """Reconcile keys from the queue, one at a time."""
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            self._working.add(key)
            try:
                delay = await self._reconcile_marked(key)
            except Exception as error:  # one key's failure must not stop the others
                self._failed(key, error)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Not this worker: something that the reconciler waited for was cancelled.
                self._failed(key, error)
            else:
                self._failures.pop(key, None)
                if delay is not None:
                    self.add_after(key, delay)
            finally:
                self._working.discard(key)
            if self._rest:
                self._start_rest(key)
            if key in self._changed_meanwhile:
                self._changed_meanwhile.discard(key)
                self.add(key)

    async def _reconcile_marked(self, key: K) -> float | None:
        """Reconcile a key, marked for the watchdog; skip one that is quarantined."""
        plane = str(key[0]) if isinstance(key, tuple) else str(key)
        if running.refusal(plane=plane, verb="reconcile", kind=self.name):
            return None
        with running.work(plane=plane, verb="reconcile", kind=self.name):
            return await self._reconcile(key)

    def _start_rest(self, reconciled_key: K) -> None:
        """Note until when the key rests."""
        now = asyncio.get_running_loop().time()
        self._rested[reconciled_key] = now + self._rest
        if len(self._rested) > _MOST_RESTING:
            self._rested = {key: until for key, until in self._rested.items() if until > now}

    def _failed(self, key: K, error: BaseException) -> None:
        """Schedule a retry after a failure, with exponential backoff."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        doubled = _FIRST_RETRY_SECONDS * 2 ** min(failures, _MOST_DOUBLINGS)
        delay = min(doubled, _LAST_RETRY_SECONDS)
        self.add_after(key, delay)
        if isinstance(error, Conflict | AlreadyExists):
            return  # our cache was behind; it will be current on the next run
        if isinstance(error, ApiError):
            if failures >= 3:
                log.warning("retrying", controller=self.name, key=str(key), error=str(error))
            return
        log.error("bug in a reconciler", controller=self.name, key=str(key), exc_info=error)
