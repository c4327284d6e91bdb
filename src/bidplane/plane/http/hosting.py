"""The interfaces of the planes that the HTTP side uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from bidplane.http.extensions import Upgrade
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.plane.fairness import Fairness
from bidplane.plane.plane import Plane
from bidplane.runtime.identity.credentials import Tokens


class ForwardedResponse(Protocol):
    """A response of a pod that is passed on."""

    @property
    def code(self) -> int: ...

    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...

    @property
    def body(self) -> AsyncIterator[bytes]: ...


class PodStreams(Protocol):
    """Connections to the nodes of a plane's pods."""

    async def logs(
        self, plane: str, pod: Object, container: str, params: Sequence[tuple[str, str]]
    ) -> AsyncIterator[bytes]:
        """Return the container's output; raise `ApiError` when there is none."""
        ...

    async def tunnel(
        self,
        plane: str,
        pod: Object,
        endpoint: str,
        container: str,
        params: Sequence[tuple[str, str]],
        upgrade: Upgrade,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """Join a client to the pod's node; raise `ApiError` when the node refuses."""
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
    ) -> ForwardedResponse:
        """Return the response of a port of the pod to one HTTP request; raise `ApiError`."""
        ...


class Hosting(Protocol):
    clock: Clock
    tokens: Tokens
    pod_streams: PodStreams | None
    fairness: Fairness  # between planes; see there

    def uid(self, name: str) -> str | None: ...

    def plane(self, name: str) -> Plane: ...
