"""
The objects of one plane: in memory for reads, in the journal for durability.

A write is *staged* first: it gets its revision and is seen by the next writer, so two writers
cannot both build on the same state. It is *committed* when its batch is on disk: only then do
readers and watchers see it, and the writer gets its answer. Between reading `latest` and staging
there is no await, which is the whole of our concurrency control.

While one batch is being synced the next one gathers: that is the group commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import structlog

from bidplane.plane.storage.collection import Collection
from bidplane.plane.storage.feed import Change, ChangeType, Feed, Item, Key, Recent
from bidplane.plane.storage.journal import Journal, JournalRow
from bidplane.plane.storage.writers import Writers
from bidplane.wire import status

COMPACT_EVERY = 4096  # revisions
COMPACT_BYTES = 8 << 20  # of objects that were replaced or deleted; at least as many as there are
OBJECT_LIMIT = 3 << 19  # bytes: 1.5 MiB, what etcd takes
KEEP = 1024  # revisions that stay resumable in the journal

_COMPACT_AGAIN = 256  # revisions after a compaction that failed
_RECALLS = 3  # attempts, of a history that goes on meanwhile

_encode = msgspec.json.Encoder().encode

log = structlog.get_logger(__name__)


class _Staged:
    __slots__ = ("deleted", "done", "item", "previous")

    def __init__(self, item: Item, previous: Item | None, deleted: bool) -> None:
        self.item, self.previous, self.deleted = item, previous, deleted
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def row(self) -> JournalRow:
        item = self.item
        return JournalRow(item.revision, str(item.key), item.created, self.deleted, item.raw)


class ObjectStore:
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
        self._objects: dict[str, Collection] = {}  # by resource
        self._overlay: dict[Key, _Staged] = {}
        self._gathering: list[_Staged] = []
        self._committing = False
        self._scheduled = False
        self._feeds: dict[str, Feed] = {}
        self._idle: asyncio.Future[None] | None = None
        self._between_commits: list[tuple[Callable[[Journal], None], asyncio.Future[None]]] = []
        self.closed = ""  # why, when it is
        self.observers: list[Callable[[Change], None]] = []
        self._compacted = int(journal.fact("compacted") or 0)
        self._compact_at = 0  # not before this revision: an earlier attempt failed
        self._garbage = 0  # bytes in the journal that a compaction would drop
        self.objects = self.bytes = 0  # of this plane, staged writes among them
        self._committed = 0, 0  # the same, without those
        self.disk = journal.size()
        self._floor = self._compacted  # of a feed nothing has been published to
        self.revision = self._compacted  # committed
        self._head = self.revision  # staged
        self._deleted_keys: set[Key] = set()  # deleted in the part of the journal that was read
        self._load()

    def add_baseline(self, baseline_items: Iterable[Item]) -> None:
        """Add baseline objects that have no row in this plane; see `baseline`."""
        for item in baseline_items:
            key = item.key
            if key not in self._deleted_keys and self.get(key) is None:
                self._collection(key.resource).put(item)
        self._deleted_keys.clear()

    def _load(self) -> None:
        for row in self.journal.rows():
            item = Item(Key.parse(row.key), None, row.value, row.created, row.revision)
            self._apply(item, row.deleted)
            (self._deleted_keys.add if row.deleted else self._deleted_keys.discard)(item.key)
        self.objects, self.bytes = self._committed
        # The newest row may have been a deletion, and compacted away: time does not go back.
        self.revision = self._head = max(self.revision, self._compacted)

    # Reading: the committed state.

    def _collection(self, resource: str) -> Collection:
        collection = self._objects.get(resource)
        if collection is None:
            collection = self._objects[resource] = Collection()
        return collection

    def get(self, key: Key) -> Item | None:
        collection = self._objects.get(key.resource)
        return None if collection is None else collection.get(key.namespace, key.name)

    def items(self, resource: str, namespace: str = "") -> list[Item]:
        """Return the objects of `resource`, by namespace and name; of all namespaces if ""."""
        collection = self._objects.get(resource)
        return [] if collection is None else collection.slice(*collection.range(namespace))

    def page(
        self, resource: str, namespace: str, after: Key | None = None, most: int = 0
    ) -> tuple[list[Item], int]:
        """Return `items` after a key, at most `most` (0: all), and how many follow them."""
        collection = self._objects.get(resource)
        if collection is None:
            return [], 0
        start, end = collection.range(namespace, after)
        stop = min(end, start + most) if most else end
        return collection.slice(start, stop), end - stop

    def page_at(
        self, resource: str, namespace: str, revision: int, after: Key | None = None, most: int = 0
    ) -> tuple[list[Item], int]:
        """Return `page` as of `revision`, with later changes undone. `Gone` if too old."""
        undone = self._states_before(resource, namespace, revision, after)
        if not undone:
            return self.page(resource, namespace, after, most)
        # As many more as were changed since: those are removed again.
        items, following = self.page(resource, namespace, after, most and most + len(undone))
        last = items[-1].key if items and following else None
        unchanged = [item for item in items if item.key not in undone]
        earlier = [item for key, item in undone.items() if item and (not last or key <= last)]
        merged = sorted([*unchanged, *earlier], key=lambda item: item.key)
        if last is not None:
            for key, item in undone.items():
                if key > last:
                    following += (item is not None) - (self.get(key) is not None)
        stop = min(len(merged), most) if most else len(merged)
        return merged[:stop], following + len(merged) - stop

    def _states_before(
        self, resource: str, namespace: str, revision: int, after: Key | None
    ) -> dict[Key, Item | None]:
        """
        Return the objects that changed after `revision`, as they were then; None for new ones.
        """
        feed = self.feed(resource)
        if revision < feed.floor:
            raise status.expired_continue()
        undone: dict[Key, Item | None] = {}
        for change in feed.newest_first():
            if change.revision <= revision:
                break
            key = change.item.key
            if (namespace and key.namespace != namespace) or (after is not None and key <= after):
                continue
            undone[key] = change.previous
        return undone

    def count(self, resource: str) -> int:
        collection = self._objects.get(resource)
        return 0 if collection is None else collection.count

    def bytes_of(self, resource: str) -> int:
        """Return the bytes of all objects of `resource`."""
        collection = self._objects.get(resource)
        return 0 if collection is None else collection.bytes

    def latest_count(self, resource: str) -> int:
        """Return `count`, with staged writes."""
        total = self.count(resource)
        for key, staged in self._overlay.items():
            if key.resource == resource:
                total += (not staged.deleted) - (self.get(key) is not None)
        return total

    def in_namespace(self, namespace: str) -> Iterator[Item]:
        """Yield every object of every resource in `namespace`."""
        for collection in list(self._objects.values()):
            yield from list(collection.spaces.get(namespace, {}).values())

    def namespaces_in_use(self) -> set[str]:
        """Return the namespaces that have objects, also those that do not exist."""
        return {name for collection in self._objects.values() for name in collection.spaces if name}

    def everything(self) -> Iterator[Item]:
        for collection in list(self._objects.values()):
            for space in list(collection.spaces.values()):
                yield from list(space.values())

    def feed(self, resource: str) -> Feed:
        feed = self._feeds.get(resource)
        if feed is None:
            feed = self._feeds[resource] = Feed(self._floor, self._recent)
            feed.closed = bool(self.closed)
        return feed

    async def recall(self, resource: str, revision: int) -> list[Change] | None:
        """
        Return the changes of `resource` after `revision` that its feed has forgotten, from the
        journal; None when the feed has all of them. Raise `Gone` when the journal has not.

        Until the next await, the returned changes and those of the feed are one history.
        """
        feed = self.feed(resource)
        for _ in range(_RECALLS):
            if revision >= feed.floor:
                return None
            if revision < feed.born:
                break
            rows: list[JournalRow] = []
            head = 0

            def read(journal: Journal, into: list[JournalRow] = rows) -> None:
                nonlocal head
                head = journal.head()
                if revision >= int(journal.fact("compacted") or 0):
                    into += journal.rows_of(resource)

            await self.run_between_commits(read)
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
        """
        Return the state that a writer must build on: the staged one if any, else the committed one.
        """
        staged = self._overlay.get(key)
        if staged is None:
            return self.get(key)
        return None if staged.deleted else staged.item

    def latest_items(self, resource: str, namespace: str) -> list[Item]:
        """Return `items`, with staged writes."""
        items = {item.key: item for item in self.items(resource, namespace)}
        for key, staged in self._overlay.items():
            if (key.resource, key.namespace) == (resource, namespace):
                if staged.deleted:
                    items.pop(key, None)
                else:
                    items[key] = staged.item
        return list(items.values())

    async def put(self, key: Key, obj: dict[str, Any]) -> Item:
        """
        Store `obj`, which the caller no longer changes, as the newest state of `key`.

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
        # Baseline objects were never created in this plane.
        created = (previous.created if previous else 0) or revision
        item = Item(key, obj, _encode(obj), created, revision)
        if len(item.raw) > OBJECT_LIMIT:
            raise status.too_large(OBJECT_LIMIT)
        staged = _Staged(item, previous, deleted)
        self.objects, self.bytes = _totals_after(self.objects, self.bytes, previous, item, deleted)
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
        """Wait until the state that `latest(key)` returns is committed."""
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
        if self._is_due():
            self._compact()

    async def run_between_commits(self, work: Callable[[Journal], None]) -> None:
        """Run `work` between two commits, in the writer's place; writes gather meanwhile."""
        if self.closed:
            raise status.unavailable(self.closed)
        if self._writers is None:
            work(self.journal)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._between_commits.append((work, done))
        self._commit_next()
        await done

    def _run_next_between(self, writers: Writers) -> None:
        work, waiting = self._between_commits.pop(0)

        def finish(error: BaseException | None) -> None:
            if not waiting.done():
                waiting.set_exception(error) if error else waiting.set_result(None)
            self._next()

        self._committing = True
        writers.submit(lambda: work(self.journal), finish)

    def _commit_next(self) -> None:
        self._scheduled = False
        if self._committing or self.closed or self._writers is None:
            return
        if self._between_commits:
            self._run_next_between(self._writers)
            return
        if self._is_due():
            self._committing = True
            self._writers.submit(self._compact, lambda error: self._next())
            return
        if not self._gathering:
            return
        batch, self._gathering = self._gathering, []
        self._committing = True
        rows = [staged.row() for staged in batch]
        self._writers.submit(
            lambda: self._write(rows), lambda error: self._finish_batch(batch, error)
        )

    def _write(self, rows: list[JournalRow]) -> None:
        """
        Append rows to the journal; blocks. Only this and `_compact` touch the journal while it is
        open.
        """
        try:
            self.journal.append(rows)
        except Exception:
            # An error can come after the commit. Rows in the journal are written: to refuse them
            # would show them later, and give their revisions to other writes.
            if not self._is_written(rows[-1].revision):
                raise
        self.disk = self.journal.size()

    def _is_written(self, revision: int) -> bool:
        try:
            return self.journal.head() >= revision
        except Exception:
            return False

    def _is_due(self) -> bool:
        if self.revision < self._compact_at:
            return False
        if self.revision - self._compacted >= COMPACT_EVERY + KEEP:
            return True
        return self._garbage >= max(COMPACT_BYTES, self._committed[1])

    def _compact(self) -> None:
        """
        Drop replaced rows from the journal, and give their space back. Blocks.

        It is no part of any write: when it fails, for want of space, the plane goes on with a
        longer journal, and it is tried again some writes later.
        """
        by_bytes = self.revision - self._compacted < COMPACT_EVERY + KEEP
        revision = self.revision if by_bytes else self.revision - KEEP
        try:
            self.journal.compact(revision)
            self._compacted = revision
            self._garbage = 0
            self.journal.shrink()
        except Exception as error:
            self._compact_at = self.revision + _COMPACT_AGAIN
            log.warning("compaction failed", file=str(self.journal.path), error=str(error))
        self.disk = self.journal.size()

    def _finish_batch(self, batch: list[_Staged], error: BaseException | None) -> None:
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
        collection = self._collection(key.resource)
        kind: ChangeType
        if deleted:
            previous = collection.remove(key)
            kind = "DELETED"
        else:
            previous = collection.put(item)
            kind = "ADDED" if previous is None else "MODIFIED"
        self.revision = item.revision
        self._committed = _totals_after(*self._committed, previous, item, deleted)
        self._garbage += len(previous.raw) if previous is not None and previous.created else 0
        self._garbage += len(item.raw) if deleted else 0
        change = Change(kind, item, previous)
        self.feed(key.resource).publish(change)
        return change

    def _fail(self, batch: list[_Staged], error: BaseException) -> None:
        """Fail the writes of `batch`, which was not stored, and all writes staged on top of it."""
        batch = batch + self._gathering
        self._gathering = []
        self._overlay.clear()
        self._head = self.revision
        self.objects, self.bytes = self._committed
        for staged in batch:
            if not staged.done.done():
                staged.done.set_exception(
                    status.unavailable(f"the write could not be kept: {error}")
                )

    def forget_history(self) -> None:
        """Forget all changes until now, those of a seeding: no watch can resume from before."""
        self._floor = self.revision
        self._feeds.clear()

    # Ending.

    def refuse_requests(self, reason: str) -> None:
        """Refuse writes and end watches from now on."""
        self.closed = reason
        for feed in self._feeds.values():
            feed.close()
        self._fail([], RuntimeError(reason))

    async def close(self, reason: str) -> None:
        """Let the batch that is being written finish, then close the file."""
        if self._committing:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self.refuse_requests(reason)
        self.journal.close()

    def abandon(self) -> None:
        """Stop as kill -9 would: writes that were not committed are lost."""
        self.observers.clear()
        self.refuse_requests("the server was killed")
        if not self._committing:
            self.journal.close()


def _totals_after(
    objects: int, size: int, previous: Item | None, item: Item, deleted: bool
) -> tuple[int, int]:
    """Return the objects and bytes of the plane after a write. Baseline objects do not count."""
    if previous is not None and previous.created:
        objects, size = objects - 1, size - len(previous.raw)
    return (objects, size) if deleted else (objects + 1, size + len(item.raw))


def _replay(rows: Iterable[JournalRow], after: int, until: int) -> list[Change]:
    """Return the changes after one revision, until another, of rows that begin before."""
    current: dict[Key, Item] = {}
    changes: list[Change] = []
    for row in rows:
        if row.revision > until:
            break
        item = Item(Key.parse(row.key), None, row.value, row.created, row.revision)
        previous = current.pop(item.key, None)
        kind: ChangeType = "DELETED" if row.deleted else "MODIFIED" if previous else "ADDED"
        if not row.deleted:
            current[item.key] = item
        if row.revision > after:
            changes.append(Change(kind, item, previous))
    return changes
