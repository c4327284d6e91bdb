"""
A cache of one kind, kept true by list and watch.

The cache is what controllers read; the API is what they write. An informer lists once,
then follows changes from that revision, and lists again when the server no longer has
the history (410) or cannot be reached. Handlers hear of each difference once, also of
those found by listing again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from bidplane.api.kinds import Kind
from bidplane.errors import ApiError, Gone
from bidplane.kube.client import Client, EventType, Object
from bidplane.machinery.clock import Clock

Handler = Callable[[EventType, Object], None]
Key = tuple[str, str]  # namespace ("" for cluster-scoped), name

_RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_PAUSE_SECONDS = 0.05  # before asking again a server that ended a watch without a word

log = structlog.get_logger(__name__)


class Informer:
    """`run()` keeps it true; `synced` is set once the first list is in."""

    def __init__(
        self, client: Client, kind: Kind, *, clock: Clock, labels: str = "", fields: str = ""
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()
        self._client = client
        self._clock = clock
        self._labels = labels
        self._fields = fields
        self._objects: dict[Key, Object] = {}
        self._handlers: list[Handler] = []
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Informer {self.kind} {len(self._objects)} objects>"

    def on_change(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def get(self, namespace: str | None, name: str) -> Object | None:
        return self._objects.get((namespace or "", name))

    def items(self) -> list[Object]:
        return list(self._objects.values())

    async def run(self) -> None:
        """List and follow, until cancelled."""
        revision = ""
        while True:
            try:
                if not revision:
                    revision = await self._list()
                seen = revision
                revision = await self._follow(revision)
                self._failures = 0
                if revision == seen:
                    await self._clock.sleep(_PAUSE_SECONDS)
            except Gone as error:
                revision = ""
                if self._failures:  # listing again did not help
                    await self._back_off(error)
                self._failures = max(self._failures, 1)
            except ApiError as error:
                # After a break the history may be gone, or be another server's.
                revision = ""
                await self._back_off(error)

    async def _list(self) -> str:
        listing = await self._client.list(self.kind, labels=self._labels, fields=self._fields)
        fresh = {key_of(obj): obj for obj in listing.items}
        for key in self._objects.keys() - fresh.keys():
            self._tell("DELETED", self._objects[key])
        for obj in fresh.values():
            self._tell("MODIFIED", obj)
        self.synced.set()
        return listing.resource_version

    async def _follow(self, revision: str) -> str:
        async for event in self._client.watch(
            self.kind, resource_version=revision, labels=self._labels, fields=self._fields
        ):
            revision = event.object["metadata"]["resourceVersion"]
            self._failures = 0
            if event.type != "BOOKMARK":
                self._tell(event.type, event.object)
        return revision

    def _tell(self, event: EventType, obj: Object) -> None:
        key = key_of(obj)
        known = self._objects.get(key)
        if event == "DELETED":
            if known is None:
                return
            del self._objects[key]
        else:
            if known is not None and _uid(known) != _uid(obj):
                # Its end was missed; another has its name.
                self._tell("DELETED", known)
                known = None
            self._objects[key] = obj
            if known is not None and revision_of(known) == revision_of(obj):
                return
            event = "ADDED" if known is None else "MODIFIED"
        for handler in self._handlers:
            try:
                handler(event, obj)
            except Exception as error:  # the cache must stay true for the others
                log.error("bug in a handler", kind=str(self.kind), exc_info=error)

    async def _back_off(self, error: ApiError) -> None:
        if self._failures == len(_RETRY_SECONDS):  # said once, when it looks lasting
            log.warning("cannot follow", kind=str(self.kind), error=str(error))
        delay = _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS) - 1)]
        self._failures += 1
        await self._clock.sleep(delay)


def key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(obj: Object) -> str:
    uid: str = obj["metadata"].get("uid", "")
    return uid


def revision_of(obj: Object) -> str:
    revision: str = obj["metadata"].get("resourceVersion", "")
    return revision
