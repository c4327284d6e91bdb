"""What the HTTP side needs of the planes behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.plane.plane import Plane
from bidplane.runtime.credentials import Tokens


class PodLogs(Protocol):
    async def open(
        self, plane: str, pod: Object, container: str, *, follow: bool, tail: int | None
    ) -> AsyncIterator[bytes]:
        """The container's output; raises `ApiError` when there is none."""
        ...


class Hosting(Protocol):
    clock: Clock
    tokens: Tokens
    pod_logs: PodLogs | None

    def uid(self, name: str) -> str | None: ...

    def plane(self, name: str) -> Plane: ...
