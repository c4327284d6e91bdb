"""
Keeps the processes of an installation running.

A process that ends is started again, later and later while it keeps failing; one that hangs is
killed first. Listening sockets belong to the supervisor and are handed down, so a restart refuses
nobody. A process whose supervisor dies notices (its standard input closes) and ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from bidplane.runtime.supervision import running
from bidplane.runtime.supervision.health import Beat
from bidplane.runtime.supervision.heartbeat import (
    DESCRIPTOR,
    Pulse,
    SilenceLimits,
    cpu_seconds,
    decode,
)
from bidplane.runtime.supervision.quarantine import FILE, WorkQuarantine
from bidplane.runtime.supervision.statusfile import PartStatus, ProcessState

_FIRST_RESTART_SECONDS = 0.1
_LAST_RESTART_SECONDS = 5.0
_STEADY_SECONDS = 10.0  # having run this long, a failure is a first one again
_STOP_SECONDS = 10.0
_TICK_SECONDS = 0.5  # between two checks for silent processes
_PAUSE_SECONDS = 1.0  # a look that comes this much too late: the whole machine was paused


log = structlog.get_logger(__name__)

OnChange = Callable[[PartStatus, str], None]  # a part, and a sentence where a person must know


class SupervisedProgram(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    command: Sequence[str]
    inherits: Sequence[int] = ()  # file descriptors: its socket, the folder's lock
    log: Path
    beats: bool = False  # it sends heartbeats, so that silence means that it hangs
    data: Path | None = None  # the installation's folder, where it marks its work


class SupervisedProcess:
    """A program, the process that runs it now, and its status."""

    def __init__(self, program: SupervisedProgram, on_change: OnChange) -> None:
        self.program = program
        self.process: asyncio.subprocess.Process | None = None
        self.pulse: Pulse | None = None
        self._on_change = on_change
        self.status = PartStatus(name=program.name, since=time.time())

    def set(
        self, state: ProcessState, *, message: str = "", news: str = "", restarts: int = 0
    ) -> None:
        """Set the status; `news` is printed for a person, `restarts` is added to the count."""
        before = self.status
        pid = self.process.pid if self.process is not None else 0
        self.status = PartStatus(
            name=before.name,
            state=state,
            pid=pid,
            since=before.since if state is before.state else time.time(),
            restarts=before.restarts + restarts,
            message=message,
        )
        if self.status != before or news:
            self._on_change(self.status, news)

    def handle_beat(self, beat: Beat) -> None:
        """Update the status from a heartbeat."""
        state = self.status.state
        message = beat.message
        if beat.problems:
            was_reported = state is ProcessState.NOT_READY or state is ProcessState.STARTING
            news = "" if was_reported else f"the {self.program.name} is not ready: {message}"
            self.set(
                ProcessState.NOT_READY if state is not ProcessState.STARTING else state,
                message=message,
                news=news,
            )
            return
        is_ready_again = state is ProcessState.NOT_READY or (
            state is ProcessState.STARTING and self.status.restarts > 0
        )
        news = f"the {self.program.name} is ready again" if is_ready_again else ""
        self.set(ProcessState.READY, message=message, news=news)


class Supervisor:
    def __init__(
        self, *, on_change: OnChange = lambda part, news: None, limits: SilenceLimits | None = None
    ) -> None:
        self._parts: dict[str, SupervisedProcess] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()  # every part is, as far as it has said
        self._on_change = on_change
        self._limits = limits or SilenceLimits()

    def start(self, program: SupervisedProgram) -> None:
        self._ready.clear()
        part = self._parts[program.name] = SupervisedProcess(program, self._report_change)
        self._keepers.append(asyncio.create_task(self._keep(part), name=program.name))
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="heartbeats")

    def pid(self, name: str) -> int | None:
        part = self._parts.get(name)
        return part.process.pid if part is not None and part.process is not None else None

    @property
    def statuses(self) -> tuple[PartStatus, ...]:
        return tuple(part.status for part in self._parts.values())

    async def wait_ready(self) -> None:
        """Wait until every part has reported that it is ready."""
        await self._ready.wait()

    def _report_change(self, part: PartStatus, news: str) -> None:
        if all(status.state is ProcessState.READY for status in self.statuses):
            self._ready.set()
        else:
            self._ready.clear()
        self._on_change(part, news)

    async def stop(self) -> None:
        """End all processes, newest first; return when none is left."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.cancel()
        for part in reversed(self._parts.values()):
            _signal(part, signal.SIGTERM)
        if not self._keepers:
            return
        # Not cancelled: these tasks wait for the processes to end.
        _, unfinished = await asyncio.wait(self._keepers, timeout=_STOP_SECONDS)
        if unfinished:
            for part in self._parts.values():
                _signal(part, signal.SIGKILL)
            await asyncio.wait(unfinished)

    async def _keep(self, part: SupervisedProcess) -> None:
        loop = asyncio.get_running_loop()
        program = part.program
        delay = _FIRST_RESTART_SECONDS
        while not self._stopping.is_set():
            started = loop.time()
            try:
                ended = f"ended ({_exit_reason(await self._run(part))})"
            except OSError as error:  # no such command, no room for a log: it may pass
                log.error("cannot start", program=program.name, error=str(error))
                ended = f"cannot be started ({error.strerror or error})"
            if self._stopping.is_set():
                break
            if loop.time() - started > _STEADY_SECONDS:
                delay = _FIRST_RESTART_SECONDS
            part.set(
                ProcessState.RESTARTING,
                message=ended,
                news=f"the {program.name} {ended}; restarting it in {delay:g} s, see {program.log}",
                restarts=1,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            delay = min(delay * 2, _LAST_RESTART_SECONDS)
        part.set(ProcessState.STOPPED)

    async def _run(self, part: SupervisedProcess) -> int:
        program = part.program
        read_end, write_end = os.pipe()
        try:
            with program.log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *program.command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(*program.inherits, write_end),
                    env={**os.environ, DESCRIPTOR: str(write_end)},
                    # Ctrl-C in the terminal reaches the supervisor alone.
                    start_new_session=True,
                )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        loop = asyncio.get_running_loop()
        part.process = process
        part.pulse = Pulse(loop.time(), self._limits) if program.beats else None
        part.set(ProcessState.STARTING if program.beats else ProcessState.READY)
        os.set_blocking(read_end, False)
        lines = _PipeLines(read_end)
        loop.add_reader(read_end, lambda: self._listen(part, lines))
        if self._stopping.is_set():  # while it was being started
            process.terminate()
        try:
            return await process.wait()
        finally:
            part.process, part.pulse = None, None
            loop.remove_reader(read_end)
            os.close(read_end)

    def _listen(self, part: SupervisedProcess, lines: _PipeLines) -> None:
        for line in lines.read():
            beat = decode(line)
            if beat is not None and part.pulse is not None and part.process is not None:
                now = asyncio.get_running_loop().time()
                part.pulse.beat(now, cpu_seconds(part.process.pid))
                part.handle_beat(beat)
        if lines.is_over:
            asyncio.get_running_loop().remove_reader(lines.descriptor)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = loop.time()
            late, last = now - last - _TICK_SECONDS, now
            for part in self._parts.values():
                if part.pulse is None or part.process is None:
                    continue
                if late > _PAUSE_SECONDS:
                    part.pulse.excuse(late)
                problem = part.pulse.problem(now, cpu_seconds(part.process.pid))
                if problem:
                    part.pulse = None  # once
                    problem += _record_hang(part.program)
                    part.set(
                        ProcessState.RESTARTING,
                        message=problem,
                        news=f"the {part.program.name} hangs: {problem}; killing it",
                    )
                    _signal(part, signal.SIGKILL)


def _record_hang(program: SupervisedProgram) -> str:
    """Record the work of a process that hangs, and return it as text for the operator."""
    if program.data is None:
        return ""
    work = running.read_mark(running.mark_file(program.data, program.name))
    if work is None:
        return ""
    try:
        refused = WorkQuarantine(program.data / FILE).strike(work)
    except OSError as error:
        return f", in {work} (which cannot be written down: {error})"
    if not refused:
        return f", in {work}"
    return f", in {work}: the second time, so it is quarantined; `bidplane plane release` lifts it"


class _PipeLines:
    """Whole lines from a non-blocking pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_over = False
        self._rest = b""

    def read(self) -> list[bytes]:
        try:
            chunk = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return []
        self.is_over = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines


def _signal(part: SupervisedProcess, number: signal.Signals) -> None:
    if part.process is not None:
        with contextlib.suppress(ProcessLookupError):
            part.process.send_signal(number)


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def keep_descriptors() -> None:
    """
    In a supervised process: keep inherited descriptors from child processes. An event loop may
    start programs with all that can be inherited, such as the installation's lock.
    """
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(number, False)


def end_with_supervisor() -> None:
    """In a supervised process: end when the supervisor is gone."""
    keep_descriptors()

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        # A process that hangs would keep the installation's folder.
        time.sleep(_STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="supervisor watch").start()
