"""
The current work of a process, for diagnosis when its event loop does not turn.

    with running.work(plane="trainer", verb="list", kind="pods"):
        …

marks the work of a task. The mark is in memory that the supervisor can read after it killed the
process, also when one call into C kept the interpreter to itself. A thread checks whether the loop
turns: work that holds it for more than a second is logged, with its plane and kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec
import structlog

from bidplane.runtime.supervision.quarantine import FILE, RunningWork, WorkQuarantine

HELD_SECONDS = 1.0
_LOOK_SECONDS = 0.25
_SIZE = 1024  # bytes of the mark
_FRAMES = 4  # of the stack that is logged

log = structlog.get_logger(__name__)

quarantine = WorkQuarantine()  # of this process; `watch` reads its file
_works: WeakKeyDictionary[asyncio.Task[object], RunningWork] = WeakKeyDictionary()
_mark: mmap.mmap | None = None
_encode = msgspec.json.Encoder().encode


@contextlib.contextmanager
def work(*, plane: str, verb: str, kind: str) -> Iterator[None]:
    """Mark the work of the current task."""
    task = asyncio.current_task()
    marked = RunningWork(plane=plane, verb=verb, kind=kind)
    outer = _works.get(task) if task is not None else None
    if task is not None:
        _works[task] = marked
    _write_mark(marked)
    try:
        yield
    finally:
        if task is not None:
            if outer is None:
                _works.pop(task, None)
            else:
                _works[task] = outer
        _write_mark(outer)


def adopt(task: asyncio.Task[object]) -> None:
    """Mark `task`, which the current task has started, with the work that it is a part of."""
    current = asyncio.current_task()
    if current is not None and current in _works:
        _works[task] = _works[current]


def refusal(*, plane: str, verb: str, kind: str) -> str:
    """Return the reason why such work is quarantined; "" if it is not."""
    return quarantine.refusal(RunningWork(plane=plane, verb=verb, kind=kind))


def mark_file(folder: Path, process: str) -> Path:
    """Return the path of the mark of a process."""
    return folder / "running" / process


def read_mark(path: Path) -> RunningWork | None:
    """Return the last marked work of a process, if it has marked any."""
    try:
        return msgspec.json.decode(path.read_bytes().rstrip(b"\0"), type=RunningWork)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_mark(marked: RunningWork | None) -> None:
    if _mark is not None:
        text = _encode(marked)[:_SIZE] if marked is not None else b""
        _mark[:] = text.ljust(_SIZE, b"\0")


async def watch(folder: Path, process: str) -> None:
    """Mark and watch the work of this process, until cancelled."""
    global _mark, quarantine
    quarantine = WorkQuarantine(folder / FILE)
    for refused in quarantine.refused():
        log.warning("quarantined", plane=refused.plane, verb=refused.verb, kind=refused.kind)
    path = mark_file(folder, process)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with path.open("wb") as file:
        file.truncate(_SIZE)
    with path.open("r+b") as file:
        _mark = mmap.mmap(file.fileno(), _SIZE)
    watchdog = Watchdog(asyncio.get_running_loop())
    thread = threading.Thread(target=watchdog.run, name="watchdog", daemon=True)
    thread.start()
    try:
        while True:
            watchdog.turned()
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        watchdog.stop()


class Watchdog:
    """A check of an event loop from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._turned = time.monotonic()
        self._blocking_work: RunningWork | None = None
        self._since = 0.0  # when the loop last turned before it was found held; 0 if it was not
        self._stopped = threading.Event()

    def turned(self) -> None:
        """Record that the loop has turned; called on the loop."""
        now = time.monotonic()
        if self._since:
            self._log("the event loop was held", now - self._since)
            self._since = 0.0
        self._turned = now

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Log, once, the work that has held the loop for more than a second."""
        if self._since or now - self._turned <= HELD_SECONDS + _LOOK_SECONDS:
            return
        self._since = self._turned
        task = asyncio.current_task(self._loop)
        self._blocking_work = _works.get(task) if task is not None else None
        if self._blocking_work is not None:
            _write_mark(self._blocking_work)
        self._log("the event loop is held", now - self._turned)

    def _log(self, event: str, seconds: float) -> None:
        blocking_work = self._blocking_work or RunningWork(plane="", verb="", kind="")
        frame = sys._current_frames().get(self._thread)
        stack = traceback.extract_stack(frame)[-_FRAMES:] if frame is not None else []
        log.warning(
            event,
            plane=blocking_work.plane,
            verb=blocking_work.verb,
            kind=blocking_work.kind,
            seconds=round(seconds, 1),
            at=" < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(stack)),
        )
