"""
GET ?watch=1: what happens after a revision, as the watcher's selector sees it.

An object that begins to match is ADDED, one that ceases to match is DELETED. A watch-list
(`sendInitialEvents`) begins with what is there, then a bookmark that says so.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bidplane.kube.client import Object
from bidplane.plane.call import Call
from bidplane.plane.feed import Change, Feed, Item
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.list import revision, selector
from bidplane.wire import status
from bidplane.wire.status import Cause

INITIAL_END = "k8s.io/initial-events-end"


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    labels: str = ""
    fields: str = ""
    resource_version: str = ""
    match: str = ""
    bookmarks: bool = False
    initial: bool | None = None  # sendInitialEvents


class Seen:
    """
    One event as a watcher sees it.

    `frames` are the change's own when the event is the change itself, in its own words: then
    the bytes of one watcher serve all.
    """

    __slots__ = ("frames", "obj", "raw", "type")

    def __init__(
        self,
        type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"],
        obj: Object,
        raw: bytes | None = None,
        frames: dict[Any, bytes] | None = None,
    ) -> None:
        self.type, self.obj, self.raw, self.frames = type, obj, raw, frames


class Watch:
    """A watch that has begun: its start was checked, its selector parsed."""

    def __init__(
        self,
        plane: Plane,
        call: Call,
        wanted: WatchOptions,
        earlier: list[Change] | None = None,
    ) -> None:
        """`earlier` is what the feed has let go of, if it is asked for; see `begin`."""
        self._earlier = earlier or []
        self._plane, self._call, self._wanted = plane, call, wanted
        self._selector = selector(call, wanted.labels, wanted.fields)
        self._feed: Feed = plane.store.feed(call.resource.storage)
        _check(call, wanted)
        asked = revision(wanted.resource_version)
        if asked > plane.store.revision:
            raise status.too_new(asked, plane.store.revision)
        # Without a revision, what is there comes first.
        initial = wanted.initial if wanted.initial is not None else not asked
        self._first: list[Item] = []
        if initial or not asked:
            if initial:
                self._first = plane.store.items(call.resource.storage, call.namespace)
            self._position = self._feed.end
        else:
            self._position = self._feed.position(asked if earlier is None else self._feed.floor)
        self._sent = asked  # the last revision a bookmark or an event told
        self._start_revision = plane.store.revision

    def first(self) -> list[Seen]:
        """What is there already, if that was asked for."""
        seen = [
            Seen("ADDED", item.obj, item.raw)
            for item in self._first
            if self._selector.matches(item.obj)
        ]
        self._first = []
        if self._wanted.initial:
            seen.append(self._bookmark(self._start_revision, initial_end=True))
        return seen

    async def more(self, until: float | None = None) -> list[Seen] | None:
        """The events since the last call; [] at `until`, None when the watch is over."""
        feed = self._feed
        while not feed.closed:
            changes, self._earlier = self._earlier, []
            if not changes:
                read = feed.read(self._position)
                if read is None:
                    raise status.expired(self._sent, feed.floor)
                changes = read
                self._position += len(changes)
            if changes:
                self._sent = changes[-1].revision
                seen = [found for change in changes if (found := self._see(change))]
                if seen:
                    return seen
                continue
            await feed.more(self._position, until)
            if feed.end == self._position and not feed.closed:
                return []
        return None

    def bookmark(self) -> Seen | None:
        """How far this watch has seen, when there is nothing it has not."""
        behind = self._earlier or self._feed.end != self._position
        if behind or not self._wanted.bookmarks:
            return None
        return self._bookmark(self._plane.store.revision)

    def _bookmark(self, at: int, *, initial_end: bool = False) -> Seen:
        metadata: dict[str, object] = {"resourceVersion": str(at), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {INITIAL_END: "true"}
        resource = self._call.resource
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return Seen("BOOKMARK", obj)

    def _see(self, change: Change) -> Seen | None:
        item, previous = change.item, change.previous
        if self._call.namespace and item.key.namespace != self._call.namespace:
            return None
        if not self._selector:
            seen: Seen | None = change.seen
            if seen is None:  # the same for everyone who watches all
                seen = change.seen = Seen(change.type, item.obj, item.raw, change.frames)
            return seen
        was = previous is not None and self._selector.matches(previous.obj)
        now = change.type != "DELETED" and self._selector.matches(item.obj)
        if was and now:
            return Seen("MODIFIED", item.obj, item.raw, change.frames)
        if now:
            return Seen("ADDED", item.obj, item.raw)
        if was and previous is not None:
            if change.type == "DELETED":
                return Seen("DELETED", item.obj, item.raw, change.frames)
            # Left the selection: shown as it was when it last matched, at this revision.
            meta = {**previous.obj["metadata"], "resourceVersion": str(item.revision)}
            return Seen("DELETED", {**previous.obj, "metadata": meta})
        return None


async def begin(plane: Plane, call: Call, wanted: WatchOptions) -> Watch:
    """Watch; from a revision the feed has let go of, what its plane's file has comes first."""
    asked = revision(wanted.resource_version)
    earlier = None
    if asked and not wanted.initial and asked <= plane.store.revision:
        earlier = await plane.store.recall(call.resource.storage, asked)
    return Watch(plane, call, wanted, earlier)


def _check(call: Call, wanted: WatchOptions) -> None:
    if wanted.initial is None:
        if wanted.match:
            cause = Cause(
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents"
                " is provided",
                "resourceVersionMatch",
                "FieldValueForbidden",
            )
            raise status.invalid(status.About(kind="ListOptions", group="meta.k8s.io"), [cause])
        return
    if wanted.match != "NotOlderThan":
        cause = Cause(
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            "resourceVersionMatch",
            "FieldValueForbidden",
        )
        raise status.invalid(status.About(kind="ListOptions", group="meta.k8s.io"), [cause])
