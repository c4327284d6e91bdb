"""
GET ?watch=1: the changes after a revision, as the watcher's selector sees them.

An object that begins to match is ADDED, one that ceases to match is DELETED. A watch-list
(`sendInitialEvents`) begins with the existing objects, then a bookmark that ends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from bidplane.kube.client import Object
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Change, Feed, Item
from bidplane.plane.turns import CHARACTER, WorkSlice
from bidplane.plane.verbs.list import matcher, revision, selector
from bidplane.wire import status
from bidplane.wire.status import Cause

PIECE_BYTES = 128 << 10  # of events that are put together at once
INITIAL_END = "k8s.io/initial-events-end"


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    labels: str = ""
    fields: str = ""
    resource_version: str = ""
    match: str = ""
    bookmarks: bool = False
    initial: bool | None = None  # sendInitialEvents


class WatchedEvent:
    """
    One event as a watcher sees it.

    `frames` are the change's own when the event is the change itself: then the bytes encoded for
    one watcher serve all.
    """

    __slots__ = ("_obj", "frames", "raw", "type")

    def __init__(
        self,
        type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"],
        obj: Object | Item,
        raw: bytes | None = None,
        frames: dict[Any, bytes] | None = None,
    ) -> None:
        self.type, self._obj, self.raw, self.frames = type, obj, raw, frames

    @property
    def size(self) -> int:
        """The bytes of the object, of one that is stored as it is sent."""
        return 0 if self.raw is None else len(self.raw)

    @property
    def obj(self) -> Object:
        """The object; of an `Item`, decoded for the caller and not kept."""
        return self._obj.peek() if isinstance(self._obj, Item) else self._obj


class Watch:
    """A watch that has begun: its start was checked, its selector parsed."""

    def __init__(
        self,
        plane: Plane,
        call: Call,
        watch_options: WatchOptions,
        earlier: list[Change] | None = None,
    ) -> None:
        """
        Begin at the feed's end, or after `earlier`: the changes that the feed no longer has; see
        `begin`.
        """
        self._earlier = earlier or []
        self._plane, self._call, self._options = plane, call, watch_options
        self._selector = selector(call, watch_options.labels, watch_options.fields)
        self._feed: Feed = plane.store.feed(call.resource.storage)
        _check_options(call, watch_options)
        requested = revision(watch_options.resource_version)
        if requested > plane.store.revision:
            raise status.too_new(requested, plane.store.revision)
        # Without a revision, the existing objects come first.
        initial = watch_options.initial if watch_options.initial is not None else not requested
        self._first: list[Item] = []
        if initial or not requested:
            if initial:
                self._first = plane.store.items(call.resource.storage, call.namespace)
            self._position = self._feed.end
        else:
            self._position = self._feed.position(requested if earlier is None else self._feed.floor)
        self._work = WorkSlice(plane.turns, plane.name)
        self._sent = requested  # the last revision a bookmark or an event told
        self._start_revision = plane.store.revision

    async def first(self) -> AsyncIterator[list[WatchedEvent]]:
        """Yield the existing objects, if requested, in pieces of about `PIECE_BYTES`."""
        items, self._first = self._first, []
        labels_only = not self._options.fields
        matches = matcher(self._selector, labels_only=labels_only) if self._selector else None
        work, cost = self._work, len(self._selector.text) * CHARACTER
        piece: list[WatchedEvent] = []
        size = 0
        for item in items:
            if work.spend(len(item.raw) + cost):
                await work.rest()
            if matches is not None and not matches(item):
                continue
            piece.append(WatchedEvent("ADDED", item, item.raw))
            size += len(item.raw)
            if size >= PIECE_BYTES:
                yield piece
                piece, size = [], 0
        if self._options.initial:
            piece.append(self._bookmark(self._start_revision, initial_end=True))
        yield piece

    async def more(self, until: float | None = None) -> list[WatchedEvent] | None:
        """
        Return the next events since the last call; [] at `until`, None when the watch is over.
        """
        feed = self._feed
        while not feed.closed:
            changes = self._next_changes()
            if changes:
                self._sent = changes[-1].revision
                events = await self._events_of(changes)
                if events:
                    return events
                continue
            await feed.more(self._position, until)
            if feed.end == self._position and not feed.closed:
                return []
        return None

    async def _events_of(self, changes: list[Change]) -> list[WatchedEvent]:
        if not self._selector:
            return [event for change in changes if (event := self._event_of(change))]
        cost = 2 * len(self._selector.text) * CHARACTER  # for the new state and the old
        events: list[WatchedEvent] = []
        for change in changes:
            if self._work.spend(len(change.item.raw) + cost):
                await self._work.rest()
            if event := self._event_of(change):
                events.append(event)
        return events

    def _next_changes(self) -> list[Change]:
        """
        Return the changes of one piece; a reader that is behind gets one piece after the other.
        """
        if self._earlier:
            changes, self._earlier = _split_piece(self._earlier)
            return changes
        read = self._feed.read(self._position)
        if read is None:
            raise status.expired(self._sent, self._feed.floor)
        changes, _ = _split_piece(read)
        self._position += len(changes)
        return changes

    def bookmark(self) -> WatchedEvent | None:
        """Return a bookmark at the current revision, unless events are still unread."""
        behind = self._earlier or self._feed.end != self._position
        if behind or not self._options.bookmarks:
            return None
        return self._bookmark(self._plane.store.revision)

    def _bookmark(self, at: int, *, initial_end: bool = False) -> WatchedEvent:
        metadata: dict[str, object] = {"resourceVersion": str(at), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {INITIAL_END: "true"}
        resource = self._call.resource
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return WatchedEvent("BOOKMARK", obj)

    def _event_of(self, change: Change) -> WatchedEvent | None:
        item, previous = change.item, change.previous
        if self._call.namespace and item.key.namespace != self._call.namespace:
            return None
        if not self._selector:
            event: WatchedEvent | None = change.seen
            if event is None:  # the same for everyone who watches all
                event = change.seen = WatchedEvent(change.type, item.obj, item.raw, change.frames)
            return event
        matched = previous is not None and self._selector.matches(previous.obj)
        matches = change.type != "DELETED" and self._selector.matches(item.obj)
        if matched and matches:
            return WatchedEvent("MODIFIED", item.obj, item.raw, change.frames)
        if matches:
            return WatchedEvent("ADDED", item.obj, item.raw)
        if matched and previous is not None:
            if change.type == "DELETED":
                return WatchedEvent("DELETED", item.obj, item.raw, change.frames)
            # Left the selection: shown as it was when it last matched, at this revision.
            meta = {**previous.obj["metadata"], "resourceVersion": str(item.revision)}
            return WatchedEvent("DELETED", {**previous.obj, "metadata": meta})
        return None


def _split_piece(changes: list[Change]) -> tuple[list[Change], list[Change]]:
    size = 0
    for index, change in enumerate(changes):
        size += len(change.item.raw)
        if size >= PIECE_BYTES:
            return changes[: index + 1], changes[index + 1 :]
    return changes, []


async def begin(plane: Plane, call: Call, watch_options: WatchOptions) -> Watch:
    """Return a watch; changes that the feed no longer has are read from the plane's file."""
    requested = revision(watch_options.resource_version)
    earlier = None
    if requested and not watch_options.initial and requested <= plane.store.revision:
        earlier = await plane.store.recall(call.resource.storage, requested)
    return Watch(plane, call, watch_options, earlier)


def _check_options(call: Call, watch_options: WatchOptions) -> None:
    if watch_options.initial is None:
        if watch_options.match:
            cause = Cause(
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents"
                " is provided",
                "resourceVersionMatch",
                "FieldValueForbidden",
            )
            raise status.invalid(status.About(kind="ListOptions", group="meta.k8s.io"), [cause])
        return
    if watch_options.match != "NotOlderThan":
        cause = Cause(
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            "resourceVersionMatch",
            "FieldValueForbidden",
        )
        raise status.invalid(status.About(kind="ListOptions", group="meta.k8s.io"), [cause])
