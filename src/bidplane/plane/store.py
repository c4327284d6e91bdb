"""
The objects of one plane: in memory for reading, in the journal for keeping.

A write is *staged* first: it gets its revision and is seen by the next writer, so two
writers cannot both build on the same state. It is *committed* when its batch is on disk:
only then do readers and watchers see it and the writer hears of it. Between reading
`latest` and staging there is no await, which is the whole of our concurrency control.

While one batch is being synced the next one gathers: that is the group commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from bidplane.plane.feed import Change, ChangeType, Feed, Item, Key, Recent
from bidplane.plane.journal import Journal, Row
from bidplane.plane.writers import Writers
from bidplane.wire import status

COMPACT_EVERY = 4096  # revisions
OBJECT_LIMIT = 3 << 19  # bytes: 1.5 MiB, what etcd takes
KEEP = 1024  # revisions that stay resumable in the journal

_RECALLS = 3  # attempts, of a history that goes on meanwhile

_encode = msgspec.json.Encoder().encode


class _Staged:
    __slots__ = ("deleted", "done", "item", "previous")

    def __init__(self, item: Item, previous: Item | None, deleted: bool) -> None:
        self.item, self.previous, self.deleted = item, previous, deleted
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def row(self) -> Row:
        item = self.item
        return Row(item.revision, str(item.key), item.created, self.deleted, item.raw)


class Store:
    """
    `writers=None` commits on the event loop: for the simulator, which owns all order.

    `recent` is shared by the stores of a process.
    """

    def __init__(
        self, journal: Journal, writers: Writers | None, recent: Recent | None = None
    ) -> None:
        self.journal = journal
        self._recent = recent or Recent()
        self._writers = writers
        self._objects: dict[str, dict[str, dict[str, Item]]] = {}  # resource, namespace, name
        self._overlay: dict[Key, _Staged] = {}
        self._gathering: list[_Staged] = []
        self._committing = False
        self._scheduled = False
        self._feeds: dict[str, Feed] = {}
        self._idle: asyncio.Future[None] | None = None
        self._aside: list[tuple[Callable[[Journal], None], asyncio.Future[None]]] = []
        self.closed = ""  # why, when it is
        self.observers: list[Callable[[Change], None]] = []
        self._compacted = int(journal.fact("compacted") or 0)
        self._floor = self._compacted  # of a feed nothing has been published to
        self.revision = self._compacted  # committed
        self._head = self.revision  # staged
        self._gone: set[Key] = set()  # deleted in the part of the journal that was read
        self._load()

    def lay(self, ground: Iterable[Item]) -> None:
        """Put what is not a row of this plane under what is; see `ground`."""
        for item in ground:
            key = item.key
            if key not in self._gone:
                spaces = self._objects.setdefault(key.resource, {})
                spaces.setdefault(key.namespace, {}).setdefault(key.name, item)
        self._gone.clear()

    def _load(self) -> None:
        for row in self.journal.rows():
            item = Item(Key.parse(row.key), None, row.value, row.created, row.revision)
            self._apply(item, row.deleted)
            (self._gone.add if row.deleted else self._gone.discard)(item.key)
        # The newest row may have been a deletion, and compacted away: time does not go back.
        self.revision = self._head = max(self.revision, self._compacted)

    # Reading: what is committed.

    def get(self, key: Key) -> Item | None:
        return self._objects.get(key.resource, {}).get(key.namespace, {}).get(key.name)

    def items(self, resource: str, namespace: str = "") -> list[Item]:
        """The objects of `resource`, in order of namespace and name; of all namespaces if ""."""
        spaces = self._objects.get(resource, {})
        if namespace:
            found = spaces.get(namespace, {})
            return [found[name] for name in sorted(found)]
        return [spaces[space][name] for space in sorted(spaces) for name in sorted(spaces[space])]

    def items_at(self, resource: str, namespace: str, revision: int) -> list[Item]:
        """As `items`, but as of `revision`: later changes are undone. `Gone` if too old."""
        feed = self.feed(resource)
        if revision < feed.floor:
            raise status.expired_continue()
        now = {item.key: item for item in self.items(resource, namespace)}
        for change in feed.back():
            if change.revision <= revision:
                break
            if namespace and change.item.key.namespace != namespace:
                continue
            if change.previous is None:
                now.pop(change.item.key, None)
            else:
                now[change.item.key] = change.previous
        return [now[key] for key in sorted(now)]

    def count(self, resource: str) -> int:
        return sum(map(len, self._objects.get(resource, {}).values()))

    def in_namespace(self, namespace: str) -> Iterator[Item]:
        """Every object of every resource in `namespace`."""
        for spaces in list(self._objects.values()):
            yield from list(spaces.get(namespace, {}).values())

    def everything(self) -> Iterator[Item]:
        for spaces in list(self._objects.values()):
            for found in list(spaces.values()):
                yield from list(found.values())

    def feed(self, resource: str) -> Feed:
        feed = self._feeds.get(resource)
        if feed is None:
            feed = self._feeds[resource] = Feed(self._floor, self._recent)
            feed.closed = bool(self.closed)
        return feed

    async def recall(self, resource: str, revision: int) -> list[Change] | None:
        """
        What happened to `resource` after `revision` and its feed has let go of, from the journal;
        None when the feed has all of it. `Gone` when the journal has not, either.

        Until the next await, what is returned and what the feed has are one history.
        """
        feed = self.feed(resource)
        for _ in range(_RECALLS):
            if revision >= feed.floor:
                return None
            if revision < feed.born:
                break
            rows: list[Row] = []
            head = 0

            def read(journal: Journal, into: list[Row] = rows) -> None:
                nonlocal head
                head = journal.head()
                if revision >= int(journal.fact("compacted") or 0):
                    into += journal.rows_of(resource)

            await self.aside(read)
            if not rows:
                break
            if head >= feed.floor:  # else it has let go of more since
                return _replay(rows, revision, feed.floor)
        raise status.expired(revision, feed.floor)

    def drop_feed(self, crd: dict[str, Any]) -> None:
        """End the watches of a resource that is no longer served."""
        spec = crd["spec"]
        resource = f"{spec['names']['plural']}.{spec['group']}"
        self.feed(resource).close()
        self._feeds[resource] = Feed(self.revision, self._recent)

    # Writing.

    def latest(self, key: Key) -> Item | None:
        """What a writer must build on: staged if there is such, else committed."""
        staged = self._overlay.get(key)
        if staged is None:
            return self.get(key)
        return None if staged.deleted else staged.item

    def latest_items(self, resource: str, namespace: str) -> list[Item]:
        """As `items`, with what is staged."""
        found = {item.key: item for item in self.items(resource, namespace)}
        for key, staged in self._overlay.items():
            if (key.resource, key.namespace) == (resource, namespace):
                if staged.deleted:
                    found.pop(key, None)
                else:
                    found[key] = staged.item
        return list(found.values())

    async def put(self, key: Key, obj: dict[str, Any]) -> Item:
        """
        Keep `obj`, which the caller gives away, as the newest state of `key`.

        The caller has decided on `latest(key)` without awaiting since.
        """
        return await self._stage(key, obj, deleted=False)

    async def remove(self, key: Key, last: dict[str, Any]) -> Item:
        """Delete `key`, whose watchers see `last`, at the revision of its deletion."""
        obj = {**last, "metadata": dict(last["metadata"])}
        return await self._stage(key, obj, deleted=True)

    async def _stage(self, key: Key, obj: dict[str, Any], *, deleted: bool) -> Item:
        if self.closed:
            raise status.unavailable(self.closed)
        previous = self.latest(key)
        revision = self._head + 1
        obj["metadata"]["resourceVersion"] = str(revision)
        # What lies under a plane was never created in it.
        created = (previous.created if previous else 0) or revision
        item = Item(key, obj, _encode(obj), created, revision)
        if len(item.raw) > OBJECT_LIMIT:
            raise status.too_large(OBJECT_LIMIT)
        staged = _Staged(item, previous, deleted)
        self._head = revision
        self._overlay[key] = staged
        self._gathering.append(staged)
        if self._writers is None:
            self._commit_here()
        elif not self._committing and not self._scheduled:
            # One turn of the loop later: requests that arrived together commit together.
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._commit_next)
        # Shielded: a client that hangs up must not take away what others wait for.
        await asyncio.shield(staged.done)
        return item

    async def settle(self, key: Key) -> None:
        """Return when what `latest(key)` says is committed."""
        staged = self._overlay.get(key)
        if staged is not None:
            await asyncio.shield(staged.done)

    # Committing.

    def _commit_here(self) -> None:
        batch, self._gathering = self._gathering, []
        try:
            self._write([staged.row() for staged in batch])
        except Exception as error:  # a full disk, a lost file: whatever it is, nobody is told "ok"
            self._fail(batch, error)
            return
        self._publish(batch)

    async def aside(self, work: Callable[[Journal], None]) -> None:
        """Run `work` between two commits, in the writer's place; writes gather meanwhile."""
        if self.closed:
            raise status.unavailable(self.closed)
        if self._writers is None:
            work(self.journal)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._aside.append((work, done))
        self._commit_next()
        await done

    def _work_aside(self, writers: Writers) -> None:
        work, waiting = self._aside.pop(0)

        def finished(error: BaseException | None) -> None:
            if not waiting.done():
                waiting.set_exception(error) if error else waiting.set_result(None)
            self._next()

        self._committing = True
        writers.submit(lambda: work(self.journal), finished)

    def _commit_next(self) -> None:
        self._scheduled = False
        if self._committing or self.closed or self._writers is None:
            return
        if self._aside:
            self._work_aside(self._writers)
            return
        if not self._gathering:
            return
        batch, self._gathering = self._gathering, []
        self._committing = True
        rows = [staged.row() for staged in batch]
        self._writers.submit(lambda: self._write(rows), lambda error: self._committed(batch, error))

    def _write(self, rows: list[Row]) -> None:
        """Blocks; the one place that touches the journal while the plane is open."""
        self.journal.append(rows)
        newest = rows[-1].revision
        if newest - self._compacted >= COMPACT_EVERY + KEEP:
            self._compacted = newest - KEEP
            self.journal.compact(self._compacted)

    def _committed(self, batch: list[_Staged], error: BaseException | None) -> None:
        self._committing = False
        if error is not None:
            self._fail(batch, error)
        else:
            self._publish(batch)
        self._next()

    def _next(self) -> None:
        self._committing = False
        self._commit_next()
        if not self._committing and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _publish(self, batch: list[_Staged]) -> None:
        for staged in batch:
            if self._overlay.get(staged.item.key) is staged:
                del self._overlay[staged.item.key]
            change = self._apply(staged.item, staged.deleted)
            for observe in self.observers:
                observe(change)
        for staged in batch:
            if not staged.done.done():
                staged.done.set_result(None)

    def _apply(self, item: Item, deleted: bool) -> Change:
        key = item.key
        found = self._objects.setdefault(key.resource, {}).setdefault(key.namespace, {})
        previous = found.get(key.name)
        kind: ChangeType
        if deleted:
            found.pop(key.name, None)
            if not found:
                del self._objects[key.resource][key.namespace]
            kind = "DELETED"
        else:
            found[key.name] = item
            kind = "ADDED" if previous is None else "MODIFIED"
        self.revision = item.revision
        change = Change(kind, item, previous)
        self.feed(key.resource).publish(change)
        return change

    def _fail(self, batch: list[_Staged], error: BaseException) -> None:
        """Nothing of `batch` was kept; what was staged on top of it cannot stand either."""
        batch = batch + self._gathering
        self._gathering = []
        self._overlay.clear()
        self._head = self.revision
        for staged in batch:
            if not staged.done.done():
                staged.done.set_exception(
                    status.unavailable(f"the write could not be kept: {error}")
                )

    def forget_history(self) -> None:
        """Watches can no longer resume from before now: of a seeding, which nobody has seen."""
        self._floor = self.revision
        self._feeds.clear()

    # Ending.

    def shut(self, why: str) -> None:
        """Refuse writes and end watches from now on."""
        self.closed = why
        for feed in self._feeds.values():
            feed.close()
        self._fail([], RuntimeError(why))

    async def close(self, why: str) -> None:
        """Let the batch that is being written finish, then close the file."""
        if self._committing:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self.shut(why)
        self.journal.close()

    def abandon(self) -> None:
        """As kill -9 would: what was not committed never happened."""
        self.observers.clear()
        self.shut("the server was killed")
        if not self._committing:
            self.journal.close()


def _replay(rows: Iterable[Row], after: int, until: int) -> list[Change]:
    """What happened after one revision, until another, in rows that begin before."""
    there: dict[Key, Item] = {}
    changes: list[Change] = []
    for row in rows:
        if row.revision > until:
            break
        item = Item(Key.parse(row.key), None, row.value, row.created, row.revision)
        previous = there.pop(item.key, None)
        kind: ChangeType = "DELETED" if row.deleted else "MODIFIED" if previous else "ADDED"
        if not row.deleted:
            there[item.key] = item
        if row.revision > after:
            changes.append(Change(kind, item, previous))
    return changes
