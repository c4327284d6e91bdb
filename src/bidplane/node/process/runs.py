"""Starts shims, finds them again after a restart, hears when they end."""

from __future__ import annotations

import asyncio
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bidplane.node.process import shim
from bidplane.node.process.records import Attempt, State

_SHIM = str(Path(shim.__file__))
_SPARE_SECONDS = 0.02  # after a start: when many start at once, they come first


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """All that a shim must know."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cgroups: Sequence[str] = ()
    oom_file: str = ""
    rlimits: Sequence[tuple[int, int]] = ()
    tty: bool = False
    stdin: bool = False
    tells_inside: bool = False
    adopts: bool = False
    log_bytes: int = 10 * 1024 * 1024
    log_files: int = 5


class Launcher:
    """
    Starts shims. One is always kept ready: most of what a start takes is Python's own start.

    A spare that gets no order, because we ended, ends too.
    """

    def __init__(self) -> None:
        self._spare: subprocess.Popen[bytes] | None = None
        self._closed = False

    async def launch(self, attempt: Attempt, order: Order) -> bool:
        """
        Start the container under a shim of its own; False when it could not be started.

        Safe to repeat, by anybody: in one attempt's folder only one shim ever runs anything.
        """
        told: dict[str, Any] = {
            **msgspec.to_builtins(order),
            "folder": str(attempt.folder),
            "env": dict(order.env),
        }
        process, self._spare = self._spare or _spawn(), None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # somebody killed it: then it answers nothing
            # Through a pipe: an order may hold secrets, so it is never on a disk.
            process.stdin.write(marshal.dumps(told))
            process.stdin.close()
        with process.stdout as answers:
            answer = await _read(answers.fileno())
        # Whoever hears of its end reaps it; Popen must not warn that nobody did.
        process.returncode = 0
        asyncio.get_running_loop().call_later(_SPARE_SECONDS, self.prepare)
        if answer != b"started\n":
            _reap(process.pid)  # it ends at once
            return False
        return True

    def prepare(self) -> None:
        if self._spare is None and not self._closed:
            self._spare = _spawn()

    def close(self) -> None:
        self._closed = True
        if self._spare is not None:
            self._spare.communicate()  # closes its stdin, which is the order to end
            self._spare = None


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", _SHIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={},
    )


def _reap(pid: int) -> None:
    with suppress(OSError):
        os.waitpid(pid, 0)


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def ready() -> None:
        loop.remove_reader(descriptor)
        if not done.done():
            done.set_result(os.read(descriptor, 100))

    loop.add_reader(descriptor, ready)
    try:
        return await done
    finally:
        loop.remove_reader(descriptor)


class Watch:
    """Calls back, once, when an attempt's shim is gone."""

    def __init__(self, state: State, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._pid = state.shim
        self._descriptor = -1
        loop = asyncio.get_running_loop()
        try:
            self._descriptor = os.pidfd_open(state.shim)
        except OSError:
            loop.call_soon(ended)
            return
        loop.add_reader(self._descriptor, self._ready)

    def _ready(self) -> None:
        self.close()
        with suppress(OSError):
            os.waitpid(self._pid, os.WNOHANG)  # ours, unless an earlier agent started it
        self._ended()

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def main_process(state: State) -> int | None:
    """The container's own first process, as this machine numbers it; None if there is none yet."""
    if not state.inside:
        return state.pid
    children = Path(f"/proc/{state.inside}/task/{state.inside}/children")
    with suppress(OSError, ValueError, IndexError):
        return int(children.read_text().split()[0])
    return None


def settled(state: State) -> bool:
    """Whether the container's own program runs, and not still what makes its sandbox."""
    pid = main_process(state)
    if pid is None:
        return not state.alive()
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() != "bwrap"
    except OSError:
        return True


def send(state: State, sign: signal.Signals) -> bool:
    """A signal to the container's own process; False when it is not there yet."""
    if not state.alive():
        return True
    pid = main_process(state)
    if pid is None:
        return False
    with suppress(OSError):
        os.kill(pid, sign)
    return True


def kill(state: State) -> None:
    """The end of the process and of all it started: its shim sees to the rest."""
    if not state.alive():
        return
    with suppress(OSError):
        os.kill(state.inside or state.pid, signal.SIGKILL)
    with suppress(OSError):
        os.killpg(state.pid, signal.SIGKILL)
