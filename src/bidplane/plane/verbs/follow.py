"""
Many watches as one, for readers in this process that follow a dozen kinds of a thousand planes.

A watch is a task, a few coroutines and a cursor: for a plane with few changes, a dozen of them take
more memory than all its objects. Here they are cursors only, and the reader waits once for all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from bidplane.api.kinds import Kind
from bidplane.errors import ApiError
from bidplane.kube.client import WatchEvent
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Feed, FeedSignal
from bidplane.plane.verbs.list import revision


class _Cursor:
    __slots__ = ("call", "kind", "position")

    def __init__(self, kind: Kind, call: Call, position: int) -> None:
        self.kind, self.call, self.position = kind, call, position

    def read(self, feed: Feed) -> list[WatchEvent] | None:
        """Return the new events; None when the watch is over, or fell behind the history."""
        changes = None if feed.closed else feed.read(self.position)
        if changes is None:
            return None
        self.position += len(changes)
        convert = self.call.to_requested_version
        return [WatchEvent(change.type, convert(change.item.obj)) for change in changes]


async def follow(
    plane: Plane, since: Mapping[Kind, str]
) -> AsyncIterator[tuple[Kind, Sequence[WatchEvent] | None]]:
    """Yield the events of each kind after its resource version; None when its watch is over."""
    signal = FeedSignal()
    cursors: dict[Feed, _Cursor] = {}
    try:
        for kind, resource_version in since.items():
            try:
                call = Call(resource=plane.registry.of(kind))
                feed = plane.store.feed(call.resource.storage)
                cursors[feed] = _Cursor(kind, call, feed.position(revision(resource_version)))
            except ApiError:  # not served any more, or too old: a new watch will get the error
                yield kind, None
                continue
            feed.subscribe(signal)
            signal.notify(feed)  # it may have gone on since
        while cursors:
            for feed in await signal.wait():
                cursor = cursors[feed]
                events = cursor.read(feed)
                if events is None:
                    feed.unsubscribe(signal)
                    del cursors[feed]
                if events is None or events:
                    yield cursor.kind, events
    finally:
        for feed in cursors:
            feed.unsubscribe(signal)
