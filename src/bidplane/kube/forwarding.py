"""A client that passes every call on: the base of clients that add something to another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from bidplane.api.kinds import Kind
from bidplane.kube.client import KubeClient, Listing, Object, WatchEvent


class ForwardingClient:
    """Passes every call to the client that `reach` returns, which is called each time."""

    def __init__(self, reach: Callable[[], KubeClient]) -> None:
        self._reach = reach

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        return await self._reach().get(kind, name, namespace)

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        return await self._reach().list(kind, namespace, labels=labels, fields=fields)

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        return self._reach().watch(
            kind, namespace, resource_version=resource_version, labels=labels, fields=fields
        )

    async def create(
        self,
        kind: Kind,
        obj: Object,
        namespace: str | None = None,
        *,
        with_status: bool = False,
    ) -> Object:
        return await self._reach().create(kind, obj, namespace, with_status=with_status)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        return await self._reach().replace(kind, obj, subresource=subresource)

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        return await self._reach().patch(kind, name, patch, namespace, subresource=subresource)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        await self._reach().delete(kind, name, namespace, grace_seconds=grace_seconds, uid=uid)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        await self._reach().bind(namespace, pod, node, uid=uid)

    async def request_token(self, namespace: str, account: str, request: Object) -> Object:
        return await self._reach().request_token(namespace, account, request)
