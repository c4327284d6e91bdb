"""A client that records its own writes in the caches beside it."""

from __future__ import annotations

from collections.abc import Mapping

from bidplane.api.kinds import Kind
from bidplane.api.objects import finalizers_of, is_deleted
from bidplane.kube.client import KubeClient, Object
from bidplane.kube.forwarding import ForwardingClient
from bidplane.machinery.informer import Informer


class CachingClient(ForwardingClient):
    """A client whose writes its caches show at once."""

    def __init__(self, inner: KubeClient, caches: Mapping[Kind, Informer]) -> None:
        super().__init__(lambda: inner)
        self._caches = caches

    async def create(
        self,
        kind: Kind,
        obj: Object,
        namespace: str | None = None,
        *,
        with_status: bool = False,
    ) -> Object:
        created = await super().create(kind, obj, namespace, with_status=with_status)
        return self._record(kind, created)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        return self._record(kind, await super().replace(kind, obj, subresource=subresource))

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        answer = await super().patch(kind, name, patch, namespace, subresource=subresource)
        # With the last finalizer gone the object is deleted: the answer is its final state.
        if is_deleted(answer) and not finalizers_of(answer):
            return answer
        return self._record(kind, answer)

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
        cached = cache.get(namespace, name) if cache is not None else None
        await super().delete(kind, name, namespace, grace_seconds=grace_seconds, uid=uid)
        if (
            cache is not None
            and cached is not None
            and uid in (None, cached["metadata"].get("uid"))
        ):
            cache.record_delete(cached)

    def _record(self, kind: Kind, obj: Object) -> Object:
        """Record a written object in its cache."""
        cache = self._caches.get(kind)
        if cache is not None:
            cache.record_write(obj)
        return obj
