"""
What a kubelet's server may ask of whatever runs the pods.

The server (HTTPS, WebSocket, SPDY) knows nothing about processes; a runtime knows
nothing about HTTP. Between them is this file. What cannot be done is refused with an
`ApiError` whose text reaches the person who typed `kubectl`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from bidplane.kube.client import Object


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """As in `GET …/pods/NAME/log`, with `sinceSeconds` already turned into a time."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: float | None = None  # seconds since 1970
    limit_bytes: int | None = None


class ExecSession(Protocol):
    """
    One command beside a container, or an attachment to the container itself.

    Both outputs must be read, or the process stops when its pipe is full. With a tty
    everything is on `stdout`, and `stderr` ends at once.
    """

    async def write(self, data: bytes) -> None:
        """To its stdin; returns when there is room for more. Ignored when stdin is closed."""

    async def close_stdin(self) -> None: ...

    def stdout(self) -> AsyncIterator[bytes]: ...

    def stderr(self) -> AsyncIterator[bytes]: ...

    def resize(self, width: int, height: int) -> None:
        """The terminal's new size, in characters; without a terminal nothing happens."""

    async def wait(self) -> int:
        """The exit code, once it ended: 128 + n after signal n."""

    async def close(self) -> None:
        """
        The client is gone: whatever was started for it ends. May be called twice.

        An attachment only lets go; the container it was attached to runs on.
        """


class PodRuntime(Protocol):
    """One or many nodes' pods. Every method may raise `ApiError`; a pod is what `find` gave."""

    def pods(self) -> list[Object]:
        """The pods that run, or ran, here, with their status as it is now (`GET /pods`)."""

    def find(self, namespace: str, name: str) -> Object:
        """The pod of that name bound to a node here; raises `NotFound`."""

    async def logs(self, pod: Object, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """
        Chunks of what the container printed, in order; whole lines unless `limit_bytes` cuts.

        Raises at once, before the first chunk, when there is no such container, when it
        waits to start, or when there is no previous one. Following ends with the container.
        """

    async def exec(
        self, pod: Object, container: str, argv: Sequence[str], *, stdin: bool, tty: bool
    ) -> ExecSession: ...

    async def attach(self, pod: Object, container: str, *, stdin: bool) -> ExecSession:
        """To what the container prints from now on; `stdin` only where its spec asks for one."""

    async def connect(
        self, pod: Object, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to that port inside the pod, for port-forward."""
