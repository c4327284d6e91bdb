"""A child process that answers one question at a time, over its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from typing import BinaryIO

_LENGTH_BYTES = 4
_NO_MORE: Mapping[str, str] = {}


class WorkerDied(Exception):
    """The worker ended, or was ended, before it answered."""


class WorkerProcess:
    """The exchange's side. The process is started by the first question, and by the next one."""

    def __init__(self, module: str, *, env: Mapping[str, str] = _NO_MORE) -> None:
        """`env`: what its environment has beside the exchange's."""
        self._command = (sys.executable, "-m", module)
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, question: bytes, *, seconds: float) -> bytes:
        """
        Return the answer. Raises `WorkerDied`, and ends the process, if there is none within
        `seconds`. One question at a time: the caller sees to that.
        """
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                process.stdin.write(_framed(question))
                await process.stdin.drain()
                head = await process.stdout.readexactly(_LENGTH_BYTES)
                return await process.stdout.readexactly(int.from_bytes(head, "big"))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
            await self.stop()
            raise WorkerDied(self._command[2]) from error
        except asyncio.CancelledError:
            await self.stop()  # its answer would be taken for the next question's
            raise

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self._env},
            )
        return self._process


def read_question(requests: BinaryIO) -> bytes | None:
    """Return the next question; None when the exchange is gone."""
    head = requests.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    return requests.read(int.from_bytes(head, "big"))


def write_answer(answers: BinaryIO, answer: bytes) -> None:
    answers.write(_framed(answer))
    answers.flush()


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body
