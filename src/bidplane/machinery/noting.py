"""A client whose writes the caches beside it know at once."""

from __future__ import annotations

from collections.abc import Mapping

from bidplane.api.kinds import Kind
from bidplane.kube.client import Client, Object
from bidplane.kube.forwarding import ForwardingClient
from bidplane.machinery.informer import Informer


class NotingClient(ForwardingClient):
    def __init__(self, inner: Client, caches: Mapping[Kind, Informer]) -> None:
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
        made = await super().create(kind, obj, namespace, with_status=with_status)
        return self._note(kind, made)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        return self._note(kind, await super().replace(kind, obj, subresource=subresource))

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
        await super().delete(kind, name, namespace, grace_seconds=grace_seconds, uid=uid)
        if cache is not None and known is not None and uid in (None, known["metadata"].get("uid")):
            cache.removed(known)

    def _note(self, kind: Kind, obj: Object) -> Object:
        cache = self._caches.get(kind)
        if cache is not None:
            cache.wrote(obj)
        return obj
