"""
Threads that wait for the disk, so that the event loop does not.

An executor's futures cost more than the commits they wait for: locks on both sides, and a
turn of the event loop for each. Here a job is a queue's entry, and all jobs that ended since
the loop last looked are told to it at once.
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
        self._told = False  # the loop was asked to look, and has not yet
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
        """What was submitted is still done; with `wait`, it is when this returns."""
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
            except BaseException as caught:  # told to whoever waits, whatever it is
                error = caught
            self._ended.append((done, error))
            # Ended before asked: whoever looks after this has all of it.
            if not self._told:
                self._told = True
                self._wake()

    def _wake(self) -> None:
        assert self._loop is not None, "submit was called"
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def _look(self) -> None:
        self._told = False
        while self._ended:
            done, error = self._ended.popleft()
            try:
                done(error)
            except Exception as bug:  # one plane's must not keep the others from hearing
                log.error("bug in what follows a commit", exc_info=bug)
