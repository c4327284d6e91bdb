"""
One client protocol for every Kubernetes API: ours, in this process or over HTTPS, and
kube-apiserver.

A `KubeClient` speaks to one endpoint (one plane, or one cluster). Objects are plain JSON
objects. What a client hands out is shared with its cache and its other callers, so the
types are read-only: to change an object, send a patch, or a copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from bidplane.api.kinds import Kind, Object

__all__ = ["EventType", "FollowingClient", "KubeClient", "Listing", "Object", "WatchEvent"]

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


class Listing(msgspec.Struct, frozen=True):
    """The objects of a kind, and the revision of that state."""

    items: Sequence[Object]
    resource_version: str


class WatchEvent(msgspec.Struct, frozen=True):
    """One change of an object."""

    type: EventType
    object: Object


class WatchingClient(Protocol):
    """The reads of a Kubernetes API that an informer makes."""

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Return all objects of `kind`; of every namespace when `namespace` is None."""
        ...

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """
        Yield the changes after `resource_version`, until the server ends the stream.

        Raises `Gone` when that revision is no longer in history: list again.
        """
        ...


class KubeClient(WatchingClient, Protocol):
    """
    A connection to one Kubernetes API. Every method raises `bidplane.errors.ApiError` (or a
    subclass) when refused.
    """

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object: ...

    async def create(
        self,
        kind: Kind,
        obj: Object,
        namespace: str | None = None,
        *,
        with_status: bool = False,
    ) -> Object:
        """
        Create an object.

        `with_status` stores its status as well, in one write. Only a plane in this process
        supports that, Kubernetes does not: check the answer.
        """
        ...

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        """PUT the whole object; `Conflict` if its resourceVersion is stale."""
        ...

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        """JSON merge patch; put metadata.resourceVersion in it to make it conditional."""
        ...

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None: ...

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        """Set a pending pod's node (the `binding` subresource)."""
        ...

    async def request_token(self, namespace: str, account: str, request: Object) -> Object:
        """Return the answer to a TokenRequest for a ServiceAccount."""
        ...


@runtime_checkable
class FollowingClient(KubeClient, Protocol):
    """A client that watches many kinds in one stream: that of a plane in this process."""

    def follow(
        self, since: Mapping[Kind, str]
    ) -> AsyncIterator[tuple[Kind, Sequence[WatchEvent] | None]]:
        """
        Yield the changes of each kind after its revision; None for a kind whose watch ended, while
        the others continue. Ends when all have ended.
        """
        ...
