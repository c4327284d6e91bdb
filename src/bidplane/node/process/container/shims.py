"""The node's side of shims: starts them, watches for their end, sends signals."""

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

import msgspec

from bidplane.node.process.container import forkserver
from bidplane.node.process.records import Attempt, StartRecord
from bidplane.node.process.sandbox.descriptors import Descriptor

_ROOT = str(Path(forkserver.__file__).parents[4])
_FORKER = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from bidplane.node.process.container.forkserver import main; main()"
)
_CHUNK = 1 << 16


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All parameters of a shim."""

    argv: Sequence[str]  # see `descriptors` for the places in it
    env: Mapping[str, str]
    descriptors: Sequence[Descriptor] = ()
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
    """Starts shims, by a process that forks them (`forkserver`) and is restarted if it ends."""

    def __init__(self) -> None:
        self._forker: subprocess.Popen[bytes] | None = None
        self._partial_line = b""  # of the forker's answers
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._orders = 0

    async def launch(self, attempt: Attempt, order: LaunchOrder) -> bool:
        """
        Start the container under its own shim; return False if it could not be started.

        Safe to repeat, also by another process: a lock lets one shim per attempt run anything.
        """
        fields: dict[str, object] = {
            **msgspec.to_builtins(order, builtin_types=(bytes,)),
            "folder": str(attempt.folder),
            "env": dict(order.env),
        }
        self._orders += 1
        number = self._orders
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(forkserver.frame(number, marshal.dumps(fields)))
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
                self._fail_orders(self._waiting.keys() - {self._orders})
        self._fail_orders(set(self._waiting))

    def prepare(self) -> None:
        """Start the forker if it does not run."""
        if self._forker is None:
            self._forker, self._partial_line = _spawn(), b""
            assert self._forker.stdout is not None
            asyncio.get_running_loop().add_reader(self._forker.stdout.fileno(), self._read_answers)

    def _read_answers(self) -> None:
        assert self._forker is not None
        assert self._forker.stdout is not None
        data = os.read(self._forker.stdout.fileno(), _CHUNK)
        if not data:
            self._fail_orders(set(self._waiting))
            return
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            number, _, word = line.decode().partition(" ")
            self._answer(int(number), word)

    def _answer(self, number: int, word: str) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(word)

    def _fail_orders(self, numbers: set[int]) -> None:
        """Drop the dead forker. Unanswered orders may have started: their folders tell."""
        self.close()
        for number in numbers:
            self._answer(number, "lost")

    def close(self) -> None:
        """End the forker; the shims it forked continue."""
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


class ShimWatch:
    """Calls back, once, when an attempt's shim ends."""

    def __init__(self, state: StartRecord, ended: Callable[[], None]) -> None:
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


def main_process(state: StartRecord) -> int | None:
    """Return the host's pid of the container's first process; None if it has none yet."""
    if not state.inside:
        return state.pid
    children = Path(f"/proc/{state.inside}/task/{state.inside}/children")
    with suppress(OSError, ValueError, IndexError):
        return int(children.read_text().split()[0])
    return None


def is_joinable(state: StartRecord) -> bool:
    """Return true if the container's program runs, and no longer the setup of its sandbox."""
    pid = main_process(state)
    if pid is None:
        return not state.alive()
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() != "bwrap"
    except OSError:
        return True


def send(state: StartRecord, sign: signal.Signals) -> bool:
    """Send a signal to the container's first process; return False if it has none yet."""
    if not state.alive():
        return True
    pid = main_process(state)
    if pid is None:
        return False
    with suppress(OSError):
        os.kill(pid, sign)
    return True


def kill(state: StartRecord) -> None:
    """Kill the process and its group; the shim kills the remaining descendants."""
    if not state.alive():
        return
    with suppress(OSError):
        os.kill(state.inside or state.pid, signal.SIGKILL)
    with suppress(OSError):
        os.killpg(state.pid, signal.SIGKILL)
