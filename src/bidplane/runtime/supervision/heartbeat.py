"""
Heartbeats: a supervised process reports each second, from its own event loop, that it lives.

The supervisor hands down the writing end of a pipe and names it in the environment. A heartbeat
is one JSON line, a `Beat`. `Pulse` is the supervisor's side: it decides when silence
means that a process hangs. It reads no clock and no process table; both are arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bidplane.runtime.supervision.health import Beat, Health

DESCRIPTOR = "BIDPLANE_HEARTBEAT"  # the environment variable with the pipe's number
BEAT_SECONDS = 1.0
_UNREADY_SECONDS = 0.1  # until it is ready, which somebody waits for

_LONGEST_LINE = 4096  # what a pipe takes whole, or not at all
_LONGEST_TEXT = 500


async def beat(
    health: Health, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Send heartbeats to the supervisor, if there is one, until cancelled."""
    number = os.environ.pop(DESCRIPTOR, "")
    if not number:
        return
    descriptor = int(number)
    os.set_inheritable(descriptor, False)  # nothing that is started here speaks for us
    os.set_blocking(descriptor, False)
    while True:
        # A full pipe means that nobody reads: the supervisor is stopped, and will find older ones.
        report = health.beat()
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(descriptor, encode(report))
        await sleep(_UNREADY_SECONDS if report.problems else BEAT_SECONDS)


def encode(beat: Beat) -> bytes:
    line = msgspec.json.encode(beat) + b"\n"
    if len(line) > _LONGEST_LINE:
        shortened = {name: text[:_LONGEST_TEXT] for name, text in list(beat.problems.items())[:4]}
        line = msgspec.json.encode(Beat(problems=shortened, notes=("… and more",))) + b"\n"
    return line


def decode(line: bytes) -> Beat | None:
    """Return the beat, or None for a line that was cut short."""
    try:
        return msgspec.json.decode(line, type=Beat)
    except msgspec.MsgspecError:
        return None


class SilenceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The longest silence of a process, in seconds."""

    starting: float = 120.0  # before its first beat: a large store takes a while to open
    silent: float = 5.0  # doing nothing: it is stopped, or waits for what never comes
    busy: float = 10.0  # of its own CPU time, spent in one computation since the last beat


class Pulse:
    """The time of the last heartbeat of a process, and its CPU time then."""

    def __init__(self, at: float, limits: SilenceLimits) -> None:
        self._limits = limits
        self._last_beat = at
        self._cpu = 0.0
        self._started = False

    def beat(self, at: float, cpu: float) -> None:
        self._last_beat, self._cpu, self._started = at, cpu, True

    def excuse(self, seconds: float) -> None:
        """Discount time in which the supervisor did not run either: the machine was paused."""
        self._last_beat += seconds

    def problem(self, at: float, cpu: float) -> str:
        """Return the reason to restart the process, or ""."""
        silence, worked = at - self._last_beat, cpu - self._cpu
        if not self._started:
            if silence > self._limits.starting:
                return f"it did not start within {self._limits.starting:.0f} s"
            return ""
        if worked > self._limits.busy:
            return f"one computation has held its event loop for {silence:.0f} s"
        # A busy process on a busy machine is measured by its own CPU time alone.
        if silence > self._limits.silent and worked < silence / 10:
            return f"no heartbeat for {silence:.0f} s"
        return ""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used; 0 where it cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
