"""
A cache of one kind, kept true by list and watch.

The cache is what controllers read; the API is what they write. An informer lists once,
then follows changes from that revision, and lists again when the server no longer has
the history (410) or cannot be reached. Handlers hear of each difference once, also of
those found by listing again.

A controller sees its own writes at once (`wrote`, `removed`), before the watch tells of
them: else it would, on its next look, do again what it has just done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from bidplane.api.kinds import Kind
from bidplane.errors import ApiError, Gone
from bidplane.kube.client import Client, EventType, Object, WatchEvent
from bidplane.machinery.clock import Clock
from bidplane.machinery.latch import Latch

Handler = Callable[[EventType, Object], None]
Key = tuple[str, str]  # namespace ("" for cluster-scoped), name

_RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_SOON = "1970-01-01T00:00:00Z"
_PAUSE_SECONDS = 0.05  # before asking again a server that ended a watch without a word

log = structlog.get_logger(__name__)


class Informer:
    """`run()` keeps it true; `synced` is set once the first list is in."""

    def __init__(
        self, client: Client, kind: Kind, *, clock: Clock, labels: str = "", fields: str = ""
    ) -> None:
        self.kind = kind
        self.synced = Latch()
        self._client = client
        self._clock = clock
        self._labels = labels
        self._fields = fields
        self._objects: dict[Key, Object] = {}
        self._spaces: dict[str, dict[str, Object]] = {}  # the same, by namespace
        self._revision = 0  # up to which the server has told us everything
        self._ahead: set[Key] = set()  # what we wrote and the watch has not told yet
        self._removed: set[str] = set()  # uids whose end was asked for and is not told yet
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

    def in_namespace(self, namespace: str) -> list[Object]:
        """
        What is in `namespace`, and of what we asked to go, that it is going.

        When it will be gone only the server knows: the time shown for that says nothing.
        """
        found = self._spaces.get(namespace, {}).values()
        if not self._removed:
            return list(found)
        return [_going(obj) if _uid(obj) in self._removed else obj for obj in found]

    def wrote(self, obj: Object) -> None:
        """What the server answered to a write of ours."""
        revision = _number(obj)
        if revision <= self._revision:
            return  # the watch was quicker, and may know of its end
        known = self._objects.get(key_of(obj))
        if known is None or _number(known) < revision:
            self._ahead.discard(key_of(obj))
            self._tell("MODIFIED", obj)
            self._ahead.add(key_of(obj))

    def removed(self, obj: Object) -> None:
        """The server accepted our wish that this object goes."""
        known = self._objects.get(key_of(obj))
        if known is None or _uid(known) != _uid(obj) or _is_going(known):
            return
        self._removed.add(_uid(obj))

    async def run(self) -> None:
        """List and follow, until cancelled."""
        revision = ""
        while True:
            try:
                if not revision:
                    revision = await self.begin()
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

    async def begin(self) -> str:
        """Begin, or begin again, with what is there now; returns its revision."""
        before = set(self._ahead)
        listing = await self._client.list(self.kind, labels=self._labels, fields=self._fields)
        # What was written before we asked is in the list; what was written since may not be.
        self._ahead -= before
        fresh = {key_of(obj): obj for obj in listing.items}
        at = int(listing.resource_version or 0)
        for key in self._objects.keys() - fresh.keys():
            if key not in self._ahead or _number(self._objects[key]) <= at:
                self._tell("DELETED", self._objects[key])
        self._revision = at
        for obj in fresh.values():
            self._tell("MODIFIED", obj)
        self.synced.set()
        return listing.resource_version

    async def _follow(self, revision: str) -> str:
        async for event in self._client.watch(
            self.kind, resource_version=revision, labels=self._labels, fields=self._fields
        ):
            revision = self.heard(event)
            self._failures = 0
        return revision

    def heard(self, event: WatchEvent) -> str:
        """The next event of a watch; returns its revision."""
        revision: str = event.object["metadata"]["resourceVersion"]
        self._revision = int(revision)
        if event.type != "BOOKMARK":
            self._tell(event.type, event.object)
        return revision

    def _tell(self, event: EventType, obj: Object) -> None:
        key = key_of(obj)
        known = self._objects.get(key)
        if event == "DELETED":
            self._removed.discard(_uid(obj))
            if known is None:
                return
            if key in self._ahead and _number(known) > _number(obj):
                return  # the end of the one before
            self._drop(key)
        else:
            if known is not None and _uid(known) != _uid(obj):
                # Its end was missed; another has its name.
                self._tell("DELETED", known)
                known = None
            if key in self._ahead and known is not None and _number(known) > _number(obj):
                return  # the watch has not reached our write yet
            self._ahead.discard(key)
            if _is_going(obj):
                self._removed.discard(_uid(obj))
            self._put(obj)
            if known is not None and _number(known) == _number(obj):
                return
            event = "ADDED" if known is None else "MODIFIED"
        tell_all(self.kind, self._handlers, event, obj)

    def _put(self, obj: Object) -> None:
        key = key_of(obj)
        self._objects[key] = obj
        self._spaces.setdefault(key[0], {})[key[1]] = obj

    def _drop(self, key: Key) -> None:
        self._ahead.discard(key)
        del self._objects[key]
        space = self._spaces[key[0]]
        del space[key[1]]
        if not space:
            del self._spaces[key[0]]

    async def _back_off(self, error: ApiError) -> None:
        if self._failures == len(_RETRY_SECONDS):  # said once, when it looks lasting
            log.warning("cannot follow", kind=str(self.kind), error=str(error))
        delay = _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS) - 1)]
        self._failures += 1
        await self._clock.sleep(delay)


def tell_all(kind: Kind, handlers: Iterable[Callable[..., None]], *told: object) -> None:
    """A handler that fails must not keep the others from hearing."""
    for handler in handlers:
        try:
            handler(*told)
        except Exception as error:
            log.error("bug in a handler", kind=str(kind), exc_info=error)


def key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(obj: Object) -> str:
    uid: str = obj["metadata"].get("uid", "")
    return uid


def _going(obj: Object) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": _SOON}}


def _is_going(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def _number(obj: Object) -> int:
    """Revisions are numbers of one clock, ours and etcd's: Kubernetes promises it since 1.35."""
    return int(obj["metadata"].get("resourceVersion") or 0)
