"""
The history of the objects of one resource, in order, and the watchers that wait for more.

A watcher is a cursor into the feed, not a queue: however many watch, a change is stored once, and
the cost of a slow watcher is bounded by the history everyone shares. A watcher that falls behind
the history is ended, as kube-apiserver ends it; its client resumes.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from bidplane.wire import status
from bidplane.wire.patches import managers

HISTORY_COUNT = 1024  # changes kept per resource, at least
HISTORY_BYTES = 8 << 20  # and at most about this much of them
# Of all planes together:
ALL_BYTES = 64 << 20  # of changes; older ones are read from the planes' files when needed
WAKE_COUNT = 32  # watchers that are woken in one turn of the event loop
WARM_COUNT = 512  # changes kept as objects and as frames; the others as bytes


class Key(NamedTuple):
    """The key of an object in a store. `resource` is `pods` or `bids.bidplane.dev`."""

    resource: str
    namespace: str  # "" when the resource has none
    name: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, text: str) -> Key:
        return cls(*text.split("/", 2))


class Owner(msgspec.Struct, frozen=True):
    uid: str = ""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an object that its plane indexes when it is opened."""

    uid: str = ""
    deletion_timestamp: str | None = None
    owner_references: tuple[Owner, ...] | None = None


class _Head(msgspec.Struct, frozen=True):
    metadata: Metadata


class _Labels(msgspec.Struct, frozen=True):
    labels: dict[str, Any] | None = None


class _Labelled(msgspec.Struct, frozen=True):
    metadata: _Labels


_decode = msgspec.json.decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_labels = msgspec.json.Decoder(_Labelled).decode


class Item:
    """
    One object at one revision. Nobody changes `obj` once an Item has it.

    Read from a file it is bytes until its first use: a plane with ten thousand objects wakes for a
    request about one.
    """

    __slots__ = ("_obj", "created", "key", "raw", "revision")

    def __init__(
        self, key: Key, obj: dict[str, Any] | None, raw: bytes, created: int, revision: int
    ):
        self.key, self._obj, self.raw = key, obj, raw
        self.created, self.revision = created, revision

    @property
    def obj(self) -> dict[str, Any]:
        if self._obj is None:
            self._obj = _decode(self.raw)
            managers.share(self._obj)
        return self._obj

    def peek(self) -> dict[str, Any]:
        """Return the object, and keep no decoded copy: for a look at all objects of a plane."""
        if self._obj is not None:
            return self._obj
        obj: dict[str, Any] = _decode(self.raw)
        return obj

    def labelled(self) -> dict[str, Any]:
        """Return the part of the object that a label selector needs."""
        if self._obj is not None:
            return self._obj
        return {"metadata": {"labels": _decode_labels(self.raw).metadata.labels}}

    def drop_decoded(self) -> None:
        """Drop the decoded object and keep its bytes: this state is no longer the newest."""
        self._obj = None

    @property
    def metadata(self) -> Metadata:
        return _decode_head(self.raw).metadata

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"].get("uid", ""))

    def __repr__(self) -> str:
        return f"<Item {self.key} at {self.revision}>"


ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


class Change:
    """One revision of one object: its new state, and its state before."""

    __slots__ = ("frames", "item", "previous", "seen", "type")

    def __init__(self, type: ChangeType, item: Item, previous: Item | None):
        self.type, self.item, self.previous = type, item, previous
        # Encoded once for all watchers that ask for the same form.
        self.frames: dict[Any, bytes] = {}
        self.seen: Any = None  # as a watcher without a selector sees it

    @property
    def revision(self) -> int:
        return self.item.revision

    def drop_decoded(self) -> None:
        """
        Drop the frames and decoded objects, which are made again for the few watchers still behind.
        """
        self.frames, self.seen = {}, None
        if self.previous is not None:
            self.previous.drop_decoded()
        if self.type == "DELETED":
            self.item.drop_decoded()

    def __repr__(self) -> str:
        return f"<{self.type} {self.item.key} at {self.item.revision}>"


class Recent:
    """
    The newest changes of all planes.

    Most watchers see a change before the next one; its decoded form takes a few times its bytes.
    One bound for all planes: a thousand with a few pods each have as many changes as one with
    thousands.
    """

    def __init__(self, count: int = WARM_COUNT, size: int = ALL_BYTES) -> None:
        self._count, self._size = count, size
        self._warm: deque[Change] = deque()
        self._by_age: deque[tuple[Feed, int, int]] = deque()  # with revision and bytes
        self._bytes = 0

    def add(self, feed: Feed, change: Change) -> None:
        self._warm.append(change)
        if len(self._warm) > self._count:
            self._warm.popleft().drop_decoded()
        size = len(change.item.raw)
        self._by_age.append((feed, change.revision, size))
        self._bytes += size
        while self._bytes > self._size and len(self._by_age) > 1:
            oldest, revision, size = self._by_age.popleft()
            self._bytes -= size
            oldest.forget_if_oldest(revision)


class FeedSignal:
    """A signal of many feeds to one waiter: it collects the feeds that have news."""

    __slots__ = ("_waiting", "_with_news")

    def __init__(self) -> None:
        self._with_news: set[Feed] = set()
        self._waiting: asyncio.Future[None] | None = None

    def notify(self, feed: Feed) -> None:
        self._with_news.add(feed)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> set[Feed]:
        if not self._with_news:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        feeds, self._with_news = self._with_news, set()
        return feeds


class Feed:
    """The bounded history of one resource."""

    __slots__ = (
        "_base",
        "_bytes",
        "_changes",
        "_recent",
        "_signals",
        "_waiting",
        "born",
        "closed",
        "floor",
    )

    def __init__(self, floor: int, recent: Recent) -> None:
        self._recent = recent
        self.born = floor  # no watch may begin before this revision
        self.floor = floor  # changes after this revision are all here
        self.closed = False
        self._changes: list[Change] = []
        self._base = 0  # position of the first change that is still here
        self._bytes = 0
        # None, not an empty set: a thousand planes have a dozen feeds each, most without watchers.
        self._waiting: set[asyncio.Future[None]] | None = None
        self._signals: tuple[FeedSignal, ...] = ()

    def publish(self, change: Change) -> None:
        self._changes.append(change)
        self._bytes += len(change.item.raw)
        self._recent.add(self, change)
        if len(self._changes) >= 2 * HISTORY_COUNT:
            self._forget(HISTORY_COUNT)
        elif self._bytes > HISTORY_BYTES and len(self._changes) > 1:
            self._forget(len(self._changes) // 2)
        self.wake()

    def forget_if_oldest(self, revision: int) -> None:
        """Forget the oldest change, if it has this revision."""
        if self._changes and self._changes[0].revision == revision:
            self._forget(1)

    def _forget(self, count: int) -> None:
        self.floor = self._changes[count - 1].revision
        self._bytes -= sum(len(change.item.raw) for change in self._changes[:count])
        del self._changes[:count]
        self._base += count

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting:
            _wake_watchers(list(waiting))
        for signal in self._signals:
            signal.notify(self)

    def subscribe(self, signal: FeedSignal) -> None:
        """Notify `signal` of every change, and of the end."""
        self._signals = (*self._signals, signal)

    def unsubscribe(self, signal: FeedSignal) -> None:
        self._signals = tuple(other for other in self._signals if other is not signal)

    def close(self) -> None:
        """End every watch."""
        self.closed = True
        if self._changes:
            self._forget(len(self._changes))
        self.wake()

    @property
    def end(self) -> int:
        """The position after the newest change."""
        return self._base + len(self._changes)

    def position(self, revision: int) -> int:
        """
        Return the position of the first change after `revision`; raise `Gone` when it was
        forgotten.
        """
        if revision < self.floor:
            raise status.expired(revision, self.floor)
        return self._base + bisect.bisect_right(
            self._changes, revision, key=lambda change: change.revision
        )

    def read(self, position: int) -> list[Change] | None:
        """Return the changes from `position` on, or None when some of them were forgotten."""
        if position < self._base:
            return None
        return self._changes[position - self._base :]

    def newest_first(self) -> Iterator[Change]:
        """Return the changes, newest first."""
        return reversed(self._changes)

    async def more(self, position: int, until: float | None = None) -> None:
        """
        Wait for a change at `position`, for the end of the feed, or until `until`.

        `until` is the event loop's time: it bounds a connection's life, not the plane's.
        """
        if self.closed or self.end > position:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if self._waiting is None:
            self._waiting = set()
        self._waiting.add(waiter)
        timer = loop.call_at(until, _expire, waiter) if until is not None else None
        try:
            await waiter
        finally:
            if self._waiting is not None:
                self._waiting.discard(waiter)
            if timer is not None:
                timer.cancel()


def _wake_watchers(waiting: list[asyncio.Future[None]]) -> None:
    """Wake a few watchers in each turn of the loop: thousands at once would hold it."""
    batch, remaining = waiting[:WAKE_COUNT], waiting[WAKE_COUNT:]
    for waiter in batch:
        if not waiter.done():
            waiter.set_result(None)
    if remaining:
        asyncio.get_running_loop().call_soon(_wake_watchers, remaining)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
