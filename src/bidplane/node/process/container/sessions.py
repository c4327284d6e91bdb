"""Commands in a container: exec, probes and hooks; and attaching to its main process."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bidplane.node.process.sandbox.descriptors import Descriptor, fill_places, open_descriptor

_CHUNK = 1 << 16
_PIPE_LIMIT = 1 << 20
# Into the container's cgroups before anything else, so that its limits hold for it, too.
_JOIN = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 126; shift; n=$((n-1)); done;'
    ' exec "$@"'
)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command that runs in a container."""

    argv: Sequence[str]  # see `descriptors` for the places in it
    env: Mapping[str, str]
    descriptors: Sequence[Descriptor] = ()
    cgroups: Sequence[str] = ()
    cwd: str | None = None

    def line(self, numbers: Sequence[int]) -> list[str]:
        argv = fill_places(self.argv, numbers)
        if not self.cgroups:
            return argv
        return ["/bin/sh", "-c", _JOIN, "sh", str(len(self.cgroups)), *self.cgroups, *argv]

    @contextmanager
    def opened(self) -> Iterator[list[int]]:
        """Open the descriptors until the command has been started."""
        numbers = [open_descriptor(descriptor) for descriptor in self.descriptors]
        try:
            yield numbers
        finally:
            for number in numbers:
                os.close(number)


class Executed:
    """An `ExecSession`: a command that was started for a client and ends with it."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int = -1) -> None:
        self._process = process
        self._terminal = terminal
        self._closed = False

    @classmethod
    async def start(cls, command: Command, *, stdin: bool, tty: bool) -> Executed:
        with command.opened() as numbers:
            if tty:
                outer, inner = pty.openpty()
                try:
                    process = await asyncio.create_subprocess_exec(
                        *command.line(numbers),
                        stdin=inner,
                        stdout=inner,
                        stderr=inner,
                        env=dict(command.env),
                        cwd=command.cwd,
                        start_new_session=True,
                        pass_fds=numbers,
                    )
                finally:
                    os.close(inner)
                os.set_blocking(outer, False)
                return cls(process, outer)
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *command.line(numbers),
                stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env=dict(command.env),
                cwd=command.cwd,
                start_new_session=True,
                limit=_PIPE_LIMIT,
                pass_fds=numbers,
            )
            return cls(process)

    async def write(self, data: bytes) -> None:
        if self._terminal >= 0:
            await _write_all(self._terminal, data)
            return
        if self._process.stdin is None or self._process.stdin.is_closing():
            return
        with suppress(ConnectionError):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def close_stdin(self) -> None:
        if self._terminal >= 0:
            await _write_all(self._terminal, b"\x04")  # as if Ctrl-D had been typed
        elif self._process.stdin is not None:
            self._process.stdin.close()

    async def stdout(self) -> AsyncIterator[bytes]:
        if self._terminal >= 0:
            async for data in _read_terminal(self._terminal):
                yield data
            return
        async for data in _chunks(self._process.stdout):
            yield data

    async def stderr(self) -> AsyncIterator[bytes]:
        if self._terminal < 0:
            async for data in _chunks(self._process.stderr):
                yield data

    def resize(self, width: int, height: int) -> None:
        if self._terminal >= 0:
            size = struct.pack("HHHH", height, width, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            await self._process.wait()
        if self._terminal >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._terminal)
            loop.remove_writer(self._terminal)
            os.close(self._terminal)
            self._terminal = -1


async def _chunks(reader: asyncio.StreamReader | None) -> AsyncIterator[bytes]:
    if reader is None:
        return
    while data := await reader.read(_CHUNK):
        yield data


async def _read_terminal(descriptor: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while True:
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            with suppress(OSError, ValueError):
                loop.remove_reader(descriptor)
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            continue
        except OSError:
            return  # nobody has the other side open any more
        if not data:
            return
        yield data


async def _write_all(descriptor: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            ready = asyncio.Event()
            loop.add_writer(descriptor, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_writer(descriptor)
        except OSError:
            return


class CommandResult(msgspec.Struct, frozen=True):
    code: int
    output: bytes


async def run(command: Command, *, timeout: float, most_bytes: int = 10240) -> CommandResult | None:
    """Run a command and return its result; None after the timeout. Its children are killed."""
    session = await Executed.start(command, stdin=False, tty=False)

    async def read() -> bytes:
        output = b""
        async for data in session.stdout():
            output = (output + data)[:most_bytes]
        async for data in session.stderr():
            output = (output + data)[:most_bytes]
        return output

    try:
        async with asyncio.timeout(timeout):
            output = await read()
            return CommandResult(await session.wait(), output)
    except TimeoutError:
        return None
    finally:
        await session.close()


class Attached:
    """An `ExecSession` on the main process of a container."""

    def __init__(
        self,
        control: Path | None,
        output: AsyncIterator[tuple[str, bytes]],
        exit_code: asyncio.Future[int],
    ) -> None:
        self._control = os.open(control, os.O_WRONLY | os.O_NONBLOCK) if control else -1
        self._output = output
        self._exit_code = exit_code
        self._queues: dict[str, asyncio.Queue[bytes]] = {
            "stdout": asyncio.Queue(16),
            "stderr": asyncio.Queue(16),
        }
        self._pump = asyncio.create_task(self._carry())

    async def _carry(self) -> None:
        try:
            async for stream, data in self._output:
                await self._queues[stream].put(data)
        finally:
            for queue in self._queues.values():
                with suppress(asyncio.QueueFull):
                    queue.put_nowait(b"")

    async def write(self, data: bytes) -> None:
        for at in range(0, len(data), 2048):  # a pipe takes so much in one piece
            part = data[at : at + 2048]
            await self._tell(b"w" + len(part).to_bytes(4, "big") + part)

    async def close_stdin(self) -> None:
        await self._tell(b"c" + bytes(4))

    async def _tell(self, frame: bytes) -> None:
        if self._control >= 0:
            await _write_all(self._control, frame)

    async def stdout(self) -> AsyncIterator[bytes]:
        while data := await self._queues["stdout"].get():
            yield data

    async def stderr(self) -> AsyncIterator[bytes]:
        while data := await self._queues["stderr"].get():
            yield data

    def resize(self, width: int, height: int) -> None:
        if self._control >= 0:
            size = width.to_bytes(2, "big") + height.to_bytes(2, "big")
            with suppress(OSError):
                os.write(self._control, b"r" + (4).to_bytes(4, "big") + size)

    async def wait(self) -> int:
        return await asyncio.shield(self._exit_code)

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        if self._control >= 0:
            os.close(self._control)
            self._control = -1
