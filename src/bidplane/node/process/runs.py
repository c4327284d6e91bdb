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

from bidplane.node.process import forking
from bidplane.node.process.records import Attempt, State

_ROOT = str(Path(forking.__file__).parents[3])
_FORKER = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from bidplane.node.process.forking import main; main()"
)
_CHUNK = 1 << 16


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
    """Starts shims, by a process that forks them (`forking`): kept ready, made anew if it ends."""

    def __init__(self) -> None:
        self._forker: subprocess.Popen[bytes] | None = None
        self._said = b""  # of a line that is not whole yet
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._orders = 0

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
        self._orders += 1
        number = self._orders
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(forking.frame(number, marshal.dumps(told)))
            return await answer == "started"
        finally:
            self._waiting.pop(number, None)

    def _send(self, order: bytes) -> None:
        for _ in range(2):  # the forker may have been killed, and nobody told us yet
            self.prepare()
            assert self._forker is not None
            assert self._forker.stdin is not None
            try:
                _write_all(self._forker.stdin.fileno(), order)
                return
            except BrokenPipeError:
                self._lose(self._waiting.keys() - {self._orders})
        self._lose(set(self._waiting))

    def prepare(self) -> None:
        """Have a forker."""
        if self._forker is None:
            self._forker, self._said = _spawn(), b""
            assert self._forker.stdout is not None
            asyncio.get_running_loop().add_reader(self._forker.stdout.fileno(), self._hear)

    def _hear(self) -> None:
        assert self._forker is not None
        assert self._forker.stdout is not None
        said = os.read(self._forker.stdout.fileno(), _CHUNK)
        if not said:
            self._lose(set(self._waiting))
            return
        *lines, self._said = (self._said + said).split(b"\n")
        for line in lines:
            number, _, word = line.decode().partition(" ")
            self._answer(int(number), word)

    def _answer(self, number: int, word: str) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(word)

    def _lose(self, numbers: set[int]) -> None:
        """The forker is gone. What it did not answer may be running: the folders tell."""
        self.close()
        for number in numbers:
            self._answer(number, "lost")

    def close(self) -> None:
        """It ends; the shims it forked go on."""
        if self._forker is None:
            return
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        asyncio.get_running_loop().remove_reader(self._forker.stdout.fileno())
        self._forker.stdin.close()
        self._forker.stdout.close()
        self._forker.wait()
        self._forker = None


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FORKER, _ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
        cwd="/",
        env={},
    )


class Watch:
    """Calls back, once, when an attempt's shim is gone."""

    def __init__(self, state: State, ended: Callable[[], None]) -> None:
        self._ended = ended
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
