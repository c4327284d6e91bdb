"""A client whose writes the caches beside it know at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from bidplane.api.kinds import Kind
from bidplane.kube.client import Client, Listing, Object, WatchEvent
from bidplane.machinery.informer import Informer


class NotingClient:
    def __init__(self, inner: Client, caches: Mapping[Kind, Informer]) -> None:
        self._inner = inner
        self._caches = caches

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        return await self._inner.get(kind, name, namespace)

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        return await self._inner.list(kind, namespace, labels=labels, fields=fields)

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        return self._inner.watch(
            kind, namespace, resource_version=resource_version, labels=labels, fields=fields
        )

    async def create(self, kind: Kind, obj: Object, namespace: str | None = None) -> Object:
        return self._note(kind, await self._inner.create(kind, obj, namespace))

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        return self._note(kind, await self._inner.replace(kind, obj, subresource=subresource))

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        answer = await self._inner.patch(kind, name, patch, namespace, subresource=subresource)
        # The last finalizer of what is going: the answer is its last state, not its newest.
        metadata = answer["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return answer
        return self._note(kind, answer)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        cache = self._caches.get(kind)
        known = cache.get(namespace, name) if cache is not None else None
        await self._inner.delete(kind, name, namespace, grace_seconds=grace_seconds, uid=uid)
        if cache is not None and known is not None and uid in (None, known["metadata"].get("uid")):
            cache.removed(known)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        await self._inner.bind(namespace, pod, node, uid=uid)

    def _note(self, kind: Kind, obj: Object) -> Object:
        cache = self._caches.get(kind)
        if cache is not None:
            cache.wrote(obj)
        return obj
