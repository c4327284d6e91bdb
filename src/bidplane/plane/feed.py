"""
What happened to the objects of one resource, in order, and who waits for more.

A watcher is a cursor into the feed, not a queue: however many watch, a change is kept
once, and what a slow watcher costs is bounded by the history everyone shares. A watcher
that falls behind the history is ended, as kube-apiserver ends it; its client resumes.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from bidplane.wire import managers, status

HISTORY_COUNT = 1024  # changes kept per resource, at least
HISTORY_BYTES = 8 << 20  # and at most about this much of them
# Of all planes together:
ALL_BYTES = 64 << 20  # of changes; what is older is in the planes' files, and read when asked for
WARM_COUNT = 512  # changes kept as objects and as frames; the others as bytes


class Key(NamedTuple):
    """Where an object is kept. `resource` is `pods` or `bids.bidplane.dev`."""

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
    """As much of an object as its plane must know before anyone asks for it."""

    uid: str = ""
    deletion_timestamp: str | None = None
    owner_references: tuple[Owner, ...] | None = None


class _Head(msgspec.Struct, frozen=True):
    metadata: Metadata


_decode = msgspec.json.decode
_decode_head = msgspec.json.Decoder(_Head).decode


class Item:
    """
    One object at one revision. Nobody changes `obj` once an Item holds it.

    Read from a file it is bytes until somebody asks: a plane with ten thousand objects
    wakes for a request about one.
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

    def cool(self) -> None:
        """Keep the bytes only: of a state that is no longer the newest."""
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
    """One revision of one object: what it is now, and what it was."""

    __slots__ = ("frames", "item", "previous", "seen", "type")

    def __init__(self, type: ChangeType, item: Item, previous: Item | None):
        self.type, self.item, self.previous = type, item, previous
        # Encoded once for all watchers that ask for the same form.
        self.frames: dict[Any, bytes] = {}
        self.seen: Any = None  # as a watcher without a selector sees it

    @property
    def revision(self) -> int:
        return self.item.revision

    def cool(self) -> None:
        """Most watchers have seen it: what it was made of is made again for who has not."""
        self.frames, self.seen = {}, None
        if self.previous is not None:
            self.previous.cool()
        if self.type == "DELETED":
            self.item.cool()

    def __repr__(self) -> str:
        return f"<{self.type} {self.item.key} at {self.item.revision}>"


class Recent:
    """
    The newest changes, whatever planes they are of.

    Those who watch mostly see a change before the next; what it was made of is a few times its
    bytes. One bound for all planes: a thousand with a few pods each have as many changes as one
    with thousands.
    """

    def __init__(self, count: int = WARM_COUNT, size: int = ALL_BYTES) -> None:
        self._count, self._size = count, size
        self._warm: deque[Change] = deque()
        self._told: deque[tuple[Feed, int, int]] = deque()  # with revision and bytes
        self._bytes = 0

    def add(self, feed: Feed, change: Change) -> None:
        self._warm.append(change)
        if len(self._warm) > self._count:
            self._warm.popleft().cool()
        size = len(change.item.raw)
        self._told.append((feed, change.revision, size))
        self._bytes += size
        while self._bytes > self._size and len(self._told) > 1:
            oldest, revision, size = self._told.popleft()
            self._bytes -= size
            oldest.let_go(revision)


class Bell:
    """Rung by many feeds for one who waits: which of them have news."""

    __slots__ = ("_rung", "_waiting")

    def __init__(self) -> None:
        self._rung: set[Feed] = set()
        self._waiting: asyncio.Future[None] | None = None

    def ring(self, feed: Feed) -> None:
        self._rung.add(feed)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> set[Feed]:
        if not self._rung:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        rung, self._rung = self._rung, set()
        return rung


class Feed:
    """The bounded history of one resource."""

    __slots__ = (
        "_base",
        "_bells",
        "_bytes",
        "_changes",
        "_recent",
        "_waiting",
        "born",
        "closed",
        "floor",
    )

    def __init__(self, floor: int, recent: Recent) -> None:
        self._recent = recent
        self.born = floor  # nothing before this revision is anybody's to see
        self.floor = floor  # changes after this revision are all here
        self.closed = False
        self._changes: list[Change] = []
        self._base = 0  # position of the first change that is still here
        self._bytes = 0
        # A thousand planes have a dozen feeds each, of which nobody hears anything.
        self._waiting: set[asyncio.Future[None]] | None = None
        self._bells: tuple[Bell, ...] = ()

    def publish(self, change: Change) -> None:
        self._changes.append(change)
        self._bytes += len(change.item.raw)
        self._recent.add(self, change)
        if len(self._changes) >= 2 * HISTORY_COUNT:
            self._forget(HISTORY_COUNT)
        elif self._bytes > HISTORY_BYTES and len(self._changes) > 1:
            self._forget(len(self._changes) // 2)
        self.wake()

    def let_go(self, revision: int) -> None:
        """Forget the oldest change, if it is that one."""
        if self._changes and self._changes[0].revision == revision:
            self._forget(1)

    def _forget(self, count: int) -> None:
        self.floor = self._changes[count - 1].revision
        self._bytes -= sum(len(change.item.raw) for change in self._changes[:count])
        del self._changes[:count]
        self._base += count

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        for waiter in waiting or ():
            if not waiter.done():
                waiter.set_result(None)
        for bell in self._bells:
            bell.ring(self)

    def hang(self, bell: Bell) -> None:
        """Ring it whenever there is more, and at the end."""
        self._bells = (*self._bells, bell)

    def unhang(self, bell: Bell) -> None:
        self._bells = tuple(one for one in self._bells if one is not bell)

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
        """Where the changes after `revision` begin; `Gone` when they are no longer here."""
        if revision < self.floor:
            raise status.expired(revision, self.floor)
        return self._base + bisect.bisect_right(
            self._changes, revision, key=lambda change: change.revision
        )

    def read(self, position: int) -> list[Change] | None:
        """The changes from `position` on, or None when some of them were forgotten."""
        if position < self._base:
            return None
        return self._changes[position - self._base :]

    def back(self) -> Iterator[Change]:
        """Newest first."""
        return reversed(self._changes)

    async def more(self, position: int, until: float | None = None) -> None:
        """
        Return when there is something at `position`, the feed closes, or at `until`.

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


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
