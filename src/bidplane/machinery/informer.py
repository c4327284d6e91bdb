"""
A cache of one kind, kept current by list and watch.

Controllers read the cache and write to the API. An informer lists once, then watches from that
revision, and lists again when the server no longer has the history (410) or cannot be reached.
Handlers get each difference once, also those found by listing again.

A controller sees its own writes at once (`record_write`, `record_delete`), before the watch
reports them: else its next run would repeat what it has just done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from bidplane.api.kinds import Kind
from bidplane.api.objects import is_deleted, uid_of
from bidplane.errors import ApiError, Gone
from bidplane.kube.client import EventType, Object, WatchEvent, WatchingClient
from bidplane.machinery.clock import Clock
from bidplane.machinery.latch import Latch

Handler = Callable[[EventType, Object], None]
Key = tuple[str, str]  # namespace ("" for cluster-scoped), name

_RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_UNKNOWN_TIME = "1970-01-01T00:00:00Z"
_PAUSE_SECONDS = 0.05  # before watching again when a server ended a watch without events

log = structlog.get_logger(__name__)


class Informer:
    """A cache of one kind: `run()` keeps it current; `synced` is set once the first list is in."""

    def __init__(
        self,
        client: WatchingClient,
        kind: Kind,
        *,
        clock: Clock,
        labels: str = "",
        fields: str = "",
    ) -> None:
        self.kind = kind
        self.synced = Latch()
        self._client = client
        self._clock = clock
        self._labels = labels
        self._fields = fields
        self._objects: dict[Key, Object] = {}
        self._namespaces: dict[str, dict[str, Object]] = {}  # the same objects, by namespace
        self._revision = 0  # the watch has reported every change up to it
        self._ahead: set[Key] = set()  # objects that we wrote and the watch has not reported yet
        self._removed: set[str] = set()  # uids that we deleted and the watch has not reported yet
        self._handlers: list[Handler] = []
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Informer {self.kind} {len(self._objects)} objects>"

    def on_change(self, handler: Handler) -> None:
        """Register a handler for changes."""
        self._handlers.append(handler)

    def get(self, namespace: str | None, name: str) -> Object | None:
        return self._objects.get((namespace or "", name))

    def items(self) -> list[Object]:
        """All cached objects."""
        return list(self._objects.values())

    def in_namespace(self, namespace: str) -> list[Object]:
        """
        The objects in `namespace`; those that we deleted have a deletionTimestamp.

        Its value means nothing: only the server knows when an object will be gone.
        """
        objects = self._namespaces.get(namespace, {}).values()
        if not self._removed:
            return list(objects)
        return [_as_deleted(obj) if uid_of(obj) in self._removed else obj for obj in objects]

    def record_write(self, obj: Object) -> None:
        """Store the server's answer to a write of ours."""
        revision = _revision_of(obj)
        if revision <= self._revision:
            return  # the watch was quicker, and may have reported its deletion already
        cached = self._objects.get(key_of(obj))
        if cached is None or _revision_of(cached) < revision:
            self._ahead.discard(key_of(obj))
            self._apply("MODIFIED", obj)
            self._ahead.add(key_of(obj))

    def record_delete(self, obj: Object) -> None:
        """Mark an object as deleted once the server has accepted our request."""
        cached = self._objects.get(key_of(obj))
        if cached is None or uid_of(cached) != uid_of(obj) or is_deleted(cached):
            return
        self._removed.add(uid_of(obj))

    async def run(self) -> None:
        """List and watch, until cancelled."""
        revision = ""
        while True:
            try:
                if not revision:
                    revision = await self.relist()
                previous = revision
                revision = await self._follow(revision)
                self._failures = 0
                if revision == previous:
                    await self._clock.sleep(_PAUSE_SECONDS)
            except Gone as error:
                revision = ""
                if self._failures:  # listing again did not help
                    await self._back_off(error)
                self._failures = max(self._failures, 1)
            except ApiError as error:
                # After an interruption the history may be gone, or be another server's.
                revision = ""
                await self._back_off(error)

    async def relist(self) -> str:
        """Replace the cache by a new list; return the list's revision."""
        written_before = set(self._ahead)
        listing = await self._client.list(self.kind, labels=self._labels, fields=self._fields)
        # The list has what was written before the request; later writes may be missing.
        self._ahead -= written_before
        listed = {key_of(obj): obj for obj in listing.items}
        revision = int(listing.resource_version or 0)
        for key in self._objects.keys() - listed.keys():
            if key not in self._ahead or _revision_of(self._objects[key]) <= revision:
                self._apply("DELETED", self._objects[key])
        self._revision = revision
        for obj in listed.values():
            self._apply("MODIFIED", obj)
        self.synced.set()
        return listing.resource_version

    async def _follow(self, revision: str) -> str:
        """Apply a watch's events until it ends; return the last revision."""
        async for event in self._client.watch(
            self.kind, resource_version=revision, labels=self._labels, fields=self._fields
        ):
            revision = self.apply_event(event)
            self._failures = 0
        return revision

    def apply_event(self, event: WatchEvent) -> str:
        """Apply the next event of a watch; return its revision."""
        revision: str = event.object["metadata"]["resourceVersion"]
        self._revision = int(revision)
        if event.type != "BOOKMARK":
            self._apply(event.type, event.object)
        return revision

    def _apply(self, event: EventType, obj: Object) -> None:
        """Apply one change to the cache and notify the handlers."""
        key = key_of(obj)
        cached = self._objects.get(key)
        if event == "DELETED":
            self._removed.discard(uid_of(obj))
            if cached is None:
                return
            if key in self._ahead and _revision_of(cached) > _revision_of(obj):
                return  # the deletion of an earlier object of this name
            self._drop(key)
        else:
            if cached is not None and uid_of(cached) != uid_of(obj):
                # Its deletion was missed: another object has its name now.
                self._apply("DELETED", cached)
                cached = None
            if (
                key in self._ahead
                and cached is not None
                and _revision_of(cached) > _revision_of(obj)
            ):
                return  # the watch has not reached our write yet
            self._ahead.discard(key)
            if is_deleted(obj):
                self._removed.discard(uid_of(obj))
            self._put(obj)
            if cached is not None and _revision_of(cached) == _revision_of(obj):
                return
            event = "ADDED" if cached is None else "MODIFIED"
        notify_all(self.kind, self._handlers, event, obj)

    def _put(self, obj: Object) -> None:
        key = key_of(obj)
        self._objects[key] = obj
        self._namespaces.setdefault(key[0], {})[key[1]] = obj

    def _drop(self, key: Key) -> None:
        self._ahead.discard(key)
        del self._objects[key]
        objects = self._namespaces[key[0]]
        del objects[key[1]]
        if not objects:
            del self._namespaces[key[0]]

    async def _back_off(self, error: ApiError) -> None:
        """Wait before the next attempt, longer after each failure."""
        if self._failures == len(_RETRY_SECONDS):  # logged once, when it seems to last
            log.warning("cannot follow", kind=str(self.kind), error=str(error))
        delay = _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS) - 1)]
        self._failures += 1
        await self._clock.sleep(delay)


def notify_all(kind: Kind, handlers: Iterable[Callable[..., None]], *arguments: object) -> None:
    """Call every handler; one that fails does not keep the others from being called."""
    for handler in handlers:
        try:
            handler(*arguments)
        except Exception as error:
            log.error("bug in a handler", kind=str(kind), exc_info=error)


def key_of(obj: Object) -> Key:
    """The object's namespace and name."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _as_deleted(obj: Object) -> Object:
    """The object with a deletionTimestamp."""
    return {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": _UNKNOWN_TIME}}


def _revision_of(obj: Object) -> int:
    """The object's resourceVersion as a number: Kubernetes promises that order since 1.35."""
    return int(obj["metadata"].get("resourceVersion") or 0)
