"""
A small runtime of real processes, to try a node's server on: no sandbox, no probes.

Containers run their `command` as it is; what they print is kept with the time it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bidplane.api.times import rfc3339
from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import Object
from bidplane.node.api import ExecSession, LogOptions

CHUNK = 32 << 10


class Container:
    """One process, everything it printed, and who listens."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[tuple[float, bytes]] = []
        self.listeners: set[asyncio.Queue[bytes | None]] = set()
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append((time.time(), line))
            for queue in self.listeners:
                queue.put_nowait(line)
        await self.process.wait()
        for queue in self.listeners:
            queue.put_nowait(None)


class LocalRuntime:
    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], Object] = {}
        self._running: dict[tuple[str, str, str], Container] = {}
        self._before: dict[tuple[str, str, str], Container] = {}
        self.execs: list[PipeSession | PtySession] = []

    async def start(self, pod: Object) -> None:
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._pods[key] = pod
        for spec in pod["spec"]["containers"]:
            await self._start(key, spec)

    async def restart(self, pod: Object) -> None:
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for spec in pod["spec"]["containers"]:
            running = self._running[(*key, spec["name"])]
            await running.reading
            self._before[(*key, spec["name"])] = running
            await self._start(key, spec)

    async def _start(self, key: tuple[str, str], spec: Any) -> None:
        process = await asyncio.create_subprocess_exec(
            *spec["command"],
            stdin=asyncio.subprocess.PIPE if spec.get("stdin") else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._running[(*key, spec["name"])] = Container(process)

    def stop(self) -> None:
        for container in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(container.process.pid, signal.SIGKILL)

    # What a node's server asks for.

    def pods(self) -> list[Object]:
        return list(self._pods.values())

    def find(self, namespace: str, name: str) -> Object:
        try:
            return self._pods[namespace, name]
        except KeyError:
            raise NotFound("pod does not exist") from None

    def _container(self, pod: Object, name: str, *, previous: bool = False) -> Container:
        key = pod["metadata"]["namespace"], pod["metadata"]["name"], name
        found = (self._before if previous else self._running).get(key)
        if found is None:
            what = "previous terminated container" if previous else "container"
            raise ApiError(f'{what} "{name}" in pod "{key[1]}" not found', code=400)
        return found

    async def logs(self, pod: Object, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        return _lines(self._container(pod, container, previous=options.previous), options)

    async def exec(
        self, pod: Object, container: str, argv: Sequence[str], *, stdin: bool, tty: bool
    ) -> ExecSession:
        self._container(pod, container)
        try:
            session: PipeSession | PtySession = (
                await PtySession.start(argv) if tty else await PipeSession.start(argv, stdin)
            )
        except OSError as error:
            raise ApiError(f"cannot run {argv[0]!r}: {error.strerror}") from error
        self.execs.append(session)
        return session

    async def attach(self, pod: Object, container: str, *, stdin: bool) -> ExecSession:
        once = any(spec.get("stdinOnce") for spec in pod["spec"]["containers"])
        return Attached(self._container(pod, container), stdin, once=once)

    async def connect(
        self, pod: Object, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port)


async def _lines(container: Container, options: LogOptions) -> AsyncIterator[bytes]:
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    container.listeners.add(queue)
    lines = [item for item in container.lines if item[0] >= (options.since or 0)]
    if options.tail_lines is not None:
        lines = lines[len(lines) - min(options.tail_lines, len(lines)) :]
    text = b"".join(
        (f"{rfc3339(at)} ".encode() if options.timestamps else b"") + line for at, line in lines
    )
    yield text[: options.limit_bytes]
    if options.follow and not container.reading.done():
        while (line := await queue.get()) is not None:
            yield line


class PipeSession:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, argv: Sequence[str], stdin: bool) -> PipeSession:
        return cls(
            await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )

    async def write(self, data: bytes) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.write(data)
                await self.process.stdin.drain()

    async def close_stdin(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def stdout(self) -> AsyncIterator[bytes]:
        return _read(self.process.stdout)

    def stderr(self) -> AsyncIterator[bytes]:
        return _read(self.process.stderr)

    def resize(self, width: int, height: int) -> None:
        return

    async def wait(self) -> int:
        code = await self.process.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


async def _read(reader: asyncio.StreamReader | None) -> AsyncIterator[bytes]:
    while reader is not None and (data := await reader.read(CHUNK)):
        yield data


class PtySession(PipeSession):
    master = -1

    @classmethod
    async def start(cls, argv: Sequence[str], stdin: bool = True) -> PtySession:
        master, slave = os.openpty()
        program = [
            "python3",
            "-c",
            "import fcntl,os,sys,termios;fcntl.ioctl(0,termios.TIOCSCTTY,0);"
            "os.execvp(sys.argv[1],sys.argv[1:])",
            *argv,
        ]
        process = await asyncio.create_subprocess_exec(
            *program, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        session = cls(process)
        session.master = master
        os.set_blocking(master, False)
        return session

    async def write(self, data: bytes) -> None:
        os.write(self.master, data)

    async def close_stdin(self) -> None:
        await self.write(b"\x04")

    async def stdout(self) -> AsyncIterator[bytes]:  # type: ignore[override]
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.master, ready.set)
        try:
            while True:
                try:
                    yield os.read(self.master, CHUNK)
                except BlockingIOError:
                    ready.clear()
                    await ready.wait()
                except OSError:
                    return  # the last process left the terminal
        finally:
            loop.remove_reader(self.master)

    async def stderr(self) -> AsyncIterator[bytes]:  # type: ignore[override]
        return
        yield b""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


class Attached:
    """To a container that runs: its output from now on, and its stdin."""

    def __init__(self, container: Container, stdin: bool, *, once: bool) -> None:
        self._container, self._stdin, self._once = container, stdin, once
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        container.listeners.add(self._queue)

    async def write(self, data: bytes) -> None:
        if self._stdin and self._container.process.stdin is not None:
            self._container.process.stdin.write(data)

    async def close_stdin(self) -> None:
        # As the kubelet has it: the next to attach types on, unless the pod says otherwise.
        if self._stdin and self._once and self._container.process.stdin is not None:
            self._container.process.stdin.close()

    async def stdout(self) -> AsyncIterator[bytes]:
        while (line := await self._queue.get()) is not None:
            yield line

    async def stderr(self) -> AsyncIterator[bytes]:
        return
        yield b""

    def resize(self, width: int, height: int) -> None:
        return

    async def wait(self) -> int:
        return await self._container.process.wait()

    async def close(self) -> None:
        self._container.listeners.discard(self._queue)
