"""
A host API in memory: an acceptable fake for one purpose, the exchange's crash story.

It keeps what that story needs of Kubernetes (revisions, uids, the status subresource,
finalizers, watches) and can kill its caller before or after any write. The exchange
against a real API server is tested in `tests/stories`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

from bidplane.api.kinds import Kind
from bidplane.errors import AlreadyExists, Conflict, NotFound, Unavailable
from bidplane.kube.client import EventType, Listing, Object, WatchEvent

Key = tuple[str, str, str]  # plural, namespace, name


class Killed(BaseException):
    """The process that called died here."""


class FakeHost:
    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.revision = 0
        self.writes = 0
        self.kill_at: int | None = None  # the write that kills
        self.kill_after = False  # after it was done, or before
        self.down = False
        self._watchers: list[tuple[str, asyncio.Queue[WatchEvent]]] = []

    # What a test does as somebody else

    def apply(self, kind: Kind, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
        key = (kind.plural, namespace, name)
        old = self.objects.get(key)
        metadata: dict[str, Any] = dict(old["metadata"]) if old else {"name": name}
        if namespace:
            metadata["namespace"] = namespace
        metadata.setdefault("uid", f"uid-{kind.plural}-{name}")
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        metadata.update(fields.pop("metadata", {}))
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, **(old or {}), **fields}
        obj["metadata"] = metadata
        return self._put(key, obj, "MODIFIED" if old else "ADDED")

    def of(self, kind: Kind) -> list[dict[str, Any]]:
        return [obj for key, obj in sorted(self.objects.items()) if key[0] == kind.plural]

    def mark_deleted(self, kind: Kind, name: str, namespace: str = "") -> None:
        key = (kind.plural, namespace, name)
        obj = copy.deepcopy(self.objects[key])
        if not obj["metadata"].get("finalizers"):
            self._remove(key)
            return
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._put(key, obj, "MODIFIED")

    # Client

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        await self._arrive()
        return self._find(kind, name, namespace)

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        await self._arrive()
        return Listing(items=self.of(kind), resource_version=str(self.revision))

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        entry = (kind.plural, queue)
        self._watchers.append(entry)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(entry)

    async def create(
        self, kind: Kind, obj: Object, namespace: str | None = None, *, with_status: bool = False
    ) -> Object:
        await self._arrive()
        with self._writing():
            key = (kind.plural, namespace or "", obj["metadata"]["name"])
            if key in self.objects:
                raise AlreadyExists(f"{key} is there")
            made = copy.deepcopy(dict(obj))
            made.pop("status", None)  # a subresource: ignored on create
            made["metadata"]["uid"] = f"uid-{self.revision}"
            return self._put(key, made, "ADDED")

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        raise NotImplementedError("the exchange patches")

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        await self._arrive()
        with self._writing():
            old = self._find(kind, name, namespace)
            expected = patch.get("metadata", {}).get("resourceVersion")
            if expected not in (None, old["metadata"]["resourceVersion"]):
                raise Conflict(f"{name} changed")
            fields = ("status",) if subresource == "status" else ("metadata", "spec")
            new = _merge(old, {k: v for k, v in patch.items() if k in fields})
            key = (kind.plural, namespace or "", name)
            gone = new["metadata"].get("deletionTimestamp")
            if gone and not new["metadata"].get("finalizers"):
                return self._remove(key)
            return self._put(key, new, "MODIFIED")

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        await self._arrive()
        with self._writing():
            self._find(kind, name, namespace)
            self.mark_deleted(kind, name, namespace or "")

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        raise NotImplementedError("the exchange binds no pods")

    async def request_token(self, namespace: str, account: str, request: Object) -> Object:
        raise NotImplementedError("the exchange asks for no tokens")

    async def _arrive(self) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise Unavailable("the host does not answer")

    def _writing(self) -> _Write:
        return _Write(self)

    def _find(self, kind: Kind, name: str, namespace: str | None) -> dict[str, Any]:
        try:
            return self.objects[kind.plural, namespace or "", name]
        except KeyError:
            raise NotFound(f"{kind} {name} is not there") from None

    def _put(self, key: Key, obj: dict[str, Any], event: EventType) -> dict[str, Any]:
        self.revision += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self.revision)
        self.objects[key] = obj
        self._tell(key, event, obj)
        return obj

    def _remove(self, key: Key) -> dict[str, Any]:
        self.revision += 1
        obj = copy.deepcopy(self.objects.pop(key))
        obj["metadata"]["resourceVersion"] = str(self.revision)
        self._tell(key, "DELETED", obj)
        return obj

    def _tell(self, key: Key, event: EventType, obj: dict[str, Any]) -> None:
        for plural, queue in self._watchers:
            if plural == key[0]:
                queue.put_nowait(WatchEvent(event, obj))


class _Write:
    """Counts a write, and kills before or after the one it was told to."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host

    def __enter__(self) -> None:
        self._host.writes += 1
        self._dies_here = self._host.writes == self._host.kill_at
        if self._dies_here and not self._host.kill_after:
            raise Killed

    def __exit__(self, kind: object, *_: object) -> None:
        if self._dies_here and kind is None:
            raise Killed


def _merge(old: dict[str, Any], patch: Object) -> dict[str, Any]:
    """JSON merge patch."""
    new = copy.deepcopy(old)
    for field, value in patch.items():
        if value is None:
            new.pop(field, None)
        elif isinstance(value, dict) and isinstance(new.get(field), dict):
            new[field] = _merge(new[field], value)
        else:
            new[field] = copy.deepcopy(value)
    return new
