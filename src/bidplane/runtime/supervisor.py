"""
Keeps the processes of an installation running.

A process that ends is started again, later and later while it keeps failing. Listening
sockets belong to the supervisor and are handed down, so a restart refuses nobody. A
process whose supervisor dies notices (its standard input closes) and ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

_FIRST_RESTART_SECONDS = 0.1
_LAST_RESTART_SECONDS = 5.0
_STEADY_SECONDS = 10.0  # having run this long, a failure is a first one again
_STOP_SECONDS = 10.0


log = structlog.get_logger(__name__)


class Program(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    command: Sequence[str]
    inherits: Sequence[int] = ()  # file descriptors: its socket, the folder's lock
    log: Path


class Supervisor:
    def __init__(self) -> None:
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def start(self, program: Program) -> None:
        self._keepers.append(asyncio.create_task(self._keep(program), name=program.name))

    def pid(self, name: str) -> int | None:
        process = self._running.get(name)
        return process.pid if process is not None else None

    async def stop(self) -> None:
        """End all, newest first; returns when none is left."""
        self._stopping.set()
        for name in reversed(list(self._running)):
            process = self._running[name]
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        if not self._keepers:
            return
        # Not cancelled: whoever waits for a process is the one who knows it.
        _, left = await asyncio.wait(self._keepers, timeout=_STOP_SECONDS)
        if left:
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await asyncio.wait(left)

    async def _keep(self, program: Program) -> None:
        loop = asyncio.get_running_loop()
        delay = _FIRST_RESTART_SECONDS
        while not self._stopping.is_set():
            started = loop.time()
            try:
                await self._run(program)
            except OSError as error:  # no such command, no room for a log: it may pass
                log.error("cannot start", program=program.name, error=str(error))
            if loop.time() - started > _STEADY_SECONDS:
                delay = _FIRST_RESTART_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            delay = min(delay * 2, _LAST_RESTART_SECONDS)

    async def _run(self, program: Program) -> None:
        with program.log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=tuple(program.inherits),
                # Ctrl-C in the terminal reaches the supervisor alone.
                start_new_session=True,
            )
        self._running[program.name] = process
        if self._stopping.is_set():  # while it was being started
            process.terminate()
        try:
            await process.wait()
        finally:
            self._running.pop(program.name, None)


def end_with_supervisor() -> None:
    """In a supervised process: end when the supervisor is gone."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        # A process that hangs would keep the installation's folder.
        time.sleep(_STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="supervisor watch").start()
