"""What the HTTP side needs of the planes behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.plane.plane import Plane
from bidplane.runtime.connection import Upgrade
from bidplane.runtime.credentials import Tokens


class Passed(Protocol):
    """An answer that is passed on."""

    @property
    def code(self) -> int: ...

    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...

    @property
    def body(self) -> AsyncIterator[bytes]: ...


class PodStreams(Protocol):
    """Whoever knows the nodes of a plane's pods."""

    async def logs(
        self, plane: str, pod: Object, container: str, params: Sequence[tuple[str, str]]
    ) -> AsyncIterator[bytes]:
        """The container's output; raises `ApiError` when there is none."""
        ...

    async def tunnel(
        self,
        plane: str,
        pod: Object,
        what: str,
        container: str,
        params: Sequence[tuple[str, str]],
        upgrade: Upgrade,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """Join a client to the pod's node; raises `ApiError` when that refuses."""
        ...

    async def request(
        self,
        plane: str,
        pod: Object,
        port: int,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
    ) -> Passed:
        """What a port of the pod answers to one HTTP request; raises `ApiError`."""
        ...


class Hosting(Protocol):
    clock: Clock
    tokens: Tokens
    pod_streams: PodStreams | None

    def uid(self, name: str) -> str | None: ...

    def plane(self, name: str) -> Plane: ...
