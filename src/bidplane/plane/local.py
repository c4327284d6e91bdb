"""
The `local` transport: a client of a plane in this process.

No TLS, no encoding, no copying: it returns the very objects of the store. It acts as a
member of `system:masters`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from bidplane.api.kinds import POD, SERVICE_ACCOUNT, Kind
from bidplane.kube.client import Listing, Object, WatchEvent
from bidplane.plane.call import Call
from bidplane.plane.identity import accounts
from bidplane.plane.plane import Plane
from bidplane.plane.verbs import bind, create, delete, follow, get, update, watch
from bidplane.plane.verbs import list as listing
from bidplane.plane.verbs import patch as patching
from bidplane.runtime.identity.credentials import Tokens
from bidplane.wire import status


class LocalClient:
    """`find` gives the plane anew for each call, so a client outlives a restart of it."""

    def __init__(self, find: Callable[[], Plane], tokens: Tokens) -> None:
        self._find = find
        self._tokens = tokens

    def _call(
        self, kind: Kind, namespace: str | None = None, name: str = "", subresource: str = ""
    ) -> tuple[Plane, Call]:
        plane = self._find()
        resource = plane.registry.of(kind)
        call_namespace = (namespace or "") if resource.namespaced else ""
        call = Call(
            resource=resource,
            namespace=call_namespace,
            name=name,
            subresource=subresource,
            enforced=True,
            warnings=[],
        )
        return plane, call

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        plane, call = self._call(kind, namespace, name)
        return call.to_requested_version(get.get(plane, call).obj)

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        plane, call = self._call(kind, namespace)
        list_options = listing.ListOptions(labels=labels, fields=fields)
        page = await listing.list_objects(plane, call, list_options)
        return Listing(
            [call.to_requested_version(item.obj) for item in page.items], str(page.revision)
        )

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        plane, call = self._call(kind, namespace)
        watch_options = watch.WatchOptions(
            labels=labels, fields=fields, resource_version=resource_version
        )
        started = await watch.begin(plane, call, watch_options)
        async for piece in started.first():
            for event in piece:
                yield WatchEvent(event.type, call.to_requested_version(event.obj))
        while (batch := await started.more()) is not None:
            for event in batch:
                yield WatchEvent(event.type, call.to_requested_version(event.obj))

    def follow(
        self, since: Mapping[Kind, str]
    ) -> AsyncIterator[tuple[Kind, Sequence[WatchEvent] | None]]:
        return follow.follow(self._find(), since)

    async def create(
        self,
        kind: Kind,
        obj: Object,
        namespace: str | None = None,
        *,
        with_status: bool = False,
    ) -> Object:
        plane, call = self._call(kind, namespace)
        if call.resource.namespaced and not namespace:
            # As over HTTP, so that nothing works here that fails there.
            raise status.method_not_allowed(call.about)
        call.with_status = with_status
        return await create.create(plane, call, obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        meta = obj["metadata"]
        plane, call = self._call(kind, meta.get("namespace"), meta["name"], subresource)
        return await update.update(plane, call, obj)

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        plane, call = self._call(kind, namespace, name, subresource)
        return await patching.patch(plane, call, patch, patching.MERGE)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        plane, call = self._call(kind, namespace, name)
        await delete.delete(plane, call, delete.DeleteOptions(grace_seconds=grace_seconds, uid=uid))

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        plane, call = self._call(POD, namespace, pod, "binding")
        await bind.bind(plane, call, {"metadata": {"uid": uid}, "target": {"name": node}})

    async def request_token(self, namespace: str, account: str, request: Object) -> Object:
        plane, call = self._call(SERVICE_ACCOUNT, namespace, account, "token")
        return accounts.request(plane, self._tokens, call, dict(request))
