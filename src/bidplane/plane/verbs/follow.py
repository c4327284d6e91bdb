"""
Many watches as one, for those in this process who follow a dozen kinds of a thousand planes.

A watch is a task, a few coroutines and a cursor: of a plane in which little happens, a dozen of
them take more memory than all it holds. Here they are cursors only, and whoever follows them
waits once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from bidplane.api.kinds import Kind
from bidplane.errors import ApiError
from bidplane.kube.client import WatchEvent
from bidplane.plane.call import Call
from bidplane.plane.feed import Bell, Feed
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.list import revision


class _Cursor:
    __slots__ = ("call", "kind", "position")

    def __init__(self, kind: Kind, call: Call, position: int) -> None:
        self.kind, self.call, self.position = kind, call, position

    def read(self, feed: Feed) -> list[WatchEvent] | None:
        """What is new; None when the watch is over, or fell behind the history."""
        changes = None if feed.closed else feed.read(self.position)
        if changes is None:
            return None
        self.position += len(changes)
        shown = self.call.shown
        return [WatchEvent(change.type, shown(change.item.obj)) for change in changes]


async def follow(
    plane: Plane, since: Mapping[Kind, str]
) -> AsyncIterator[tuple[Kind, Sequence[WatchEvent] | None]]:
    bell = Bell()
    cursors: dict[Feed, _Cursor] = {}
    try:
        for kind, at in since.items():
            try:
                call = Call(resource=plane.registry.of(kind))
                feed = plane.store.feed(call.resource.storage)
                cursors[feed] = _Cursor(kind, call, feed.position(revision(at)))
            except ApiError:  # not served any more, or too old: who watches it will be told so
                yield kind, None
                continue
            feed.hang(bell)
            bell.ring(feed)  # it may have gone on since
        while cursors:
            for feed in await bell.wait():
                cursor = cursors[feed]
                events = cursor.read(feed)
                if events is None:
                    feed.unhang(bell)
                    del cursors[feed]
                if events is None or events:
                    yield cursor.kind, events
    finally:
        for feed in cursors:
            feed.unhang(bell)
