"""
The interface between a kubelet's server and the runtime that runs the pods.

The server (HTTPS, WebSocket, SPDY) knows nothing about processes; a runtime knows nothing about
HTTP. A runtime refuses what it cannot do with an `ApiError`, whose text kubectl shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from bidplane.kube.client import Object


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of `GET …/pods/NAME/log`, with `sinceSeconds` already turned into a time."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: float | None = None  # seconds since 1970
    limit_bytes: int | None = None


class ExecSession(Protocol):
    """
    A command in a container, or an attachment to the container itself.

    Both outputs must be read, or the process stops when its pipe is full. With a tty everything is
    on `stdout`, and `stderr` ends at once.
    """

    async def write(self, data: bytes) -> None:
        """
        Write to its stdin; returns when there is room for more. Ignored when stdin is closed.
        """

    async def close_stdin(self) -> None: ...

    def stdout(self) -> AsyncIterator[bytes]: ...

    def stderr(self) -> AsyncIterator[bytes]: ...

    def resize(self, width: int, height: int) -> None:
        """Set the terminal's size, in characters; ignored without a terminal."""

    async def wait(self) -> int:
        """Wait for its end and return the exit code: 128 + n after signal n."""

    async def close(self) -> None:
        """
        End what was started for a client that is gone. May be called twice.

        An attachment only detaches; the container runs on.
        """


class PodRuntime(Protocol):
    """
    The pods of one or many nodes. Every method may raise `ApiError`; a pod is what `find`
    returned.
    """

    def pods(self) -> list[Object]:
        """The pods that run, or ran, here, with their present status (`GET /pods`)."""

    def find(self, namespace: str, name: str) -> Object:
        """The pod of that name bound to a node of this runtime; raises `NotFound`."""

    async def logs(self, pod: Object, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """
        Yield chunks of the container's log, in order; whole lines unless `limit_bytes` cuts.

        Raises at once, before the first chunk, when there is no such container, when it waits to
        start, or when there is no previous one. Following ends with the container.
        """

    async def exec(
        self, pod: Object, container: str, argv: Sequence[str], *, stdin: bool, tty: bool
    ) -> ExecSession: ...

    async def attach(self, pod: Object, container: str, *, stdin: bool) -> ExecSession:
        """Attach to the container's output from now on; `stdin` only where its spec has it."""

    async def connect(
        self, pod: Object, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to that port inside the pod, for port-forward."""
