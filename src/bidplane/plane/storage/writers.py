"""
Threads that wait for the disk, so that the event loop does not.

An executor's futures cost more than the commits they wait for: locks on both sides, and a
turn of the event loop for each. Here a job is a queue's entry, and all jobs that ended since
the last report are reported to the loop at once.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable

import structlog

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]

log = structlog.get_logger(__name__)


class Writers:
    """`submit` is called on one event loop, and `done` is called there."""

    def __init__(self, count: int) -> None:
        self._jobs: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._ended: deque[tuple[Done, BaseException | None]] = deque()
        self._is_wake_pending = False  # the loop was called, and has not run yet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = count
        self._threads: list[threading.Thread] = []

    def submit(self, work: Work, done: Done) -> None:
        """Do `work` on a thread, then call `done` with what it raised, or None."""
        self._loop = asyncio.get_running_loop()
        if len(self._threads) < self._count:
            self._start()
        self._jobs.put((work, done))

    def close(self, *, wait: bool = True) -> None:
        """Stop after the submitted jobs are done; with `wait`, wait for that."""
        for _ in self._threads:
            self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
        self._threads.clear()

    def _start(self) -> None:
        name = f"plane-writer-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            error: BaseException | None = None
            try:
                work()
            except BaseException as caught:  # reported to the caller, whatever it is
                error = caught
            self._ended.append((done, error))
            # Appended before this check: the next report includes it.
            if not self._is_wake_pending:
                self._is_wake_pending = True
                self._wake()

    def _wake(self) -> None:
        assert self._loop is not None, "submit was called"
        try:
            self._loop.call_soon_threadsafe(self._report_ended)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def _report_ended(self) -> None:
        self._is_wake_pending = False
        while self._ended:
            done, error = self._ended.popleft()
            try:
                done(error)
            except Exception as bug:  # one plane's bug must not keep the results from the others
                log.error("bug in what follows a commit", exc_info=bug)
