"""
Watchers that live through it: writes, compactions, a short history, crashes and reopenings.

Each begins at some revision, and reads when it likes. Whatever happens, it has seen every later
event once and in order; or it was told that what it missed is gone, and begins anew from a list.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bidplane.errors import Gone
from bidplane.plane.storage import feed as feeds
from bidplane.plane.storage import store as stores
from bidplane.plane.storage.feed import Change, Key
from bidplane.plane.storage.journal import Journal
from bidplane.plane.storage.store import ObjectStore
from bidplane.plane.storage.writers import Writers

NAMES = ("a", "b", "c")
Event = tuple[int, str, str]  # revision, type, name


class Watcher:
    """As a client: it remembers the last revision it saw, and what it takes the state to be."""

    def __init__(self, store: ObjectStore, start: int, state: set[str]) -> None:
        self.seen: list[Event] = []
        self.at, self.state = start, state
        self.lists = 0
        self._earlier: list[Change] = []

    async def connect(self, store: ObjectStore) -> None:
        self._feed = store.feed("things")
        self._earlier = []
        try:
            earlier = await store.recall("things", self.at)
            start = self.at if earlier is None else self._feed.floor
            self._position = self._feed.position(start)
            self._earlier = earlier or []
        except Gone:
            self._list(store)

    def _list(self, store: ObjectStore) -> None:
        self.lists += 1
        self.seen = []
        self.at = store.revision
        self.state = {item.key.name for item in store.items("things")}
        self._position = self._feed.end

    def read(self, store: ObjectStore) -> None:
        changes = self._feed.read(self._position)
        if changes is None:
            self._earlier = []
            self._list(store)
            return
        earlier, self._earlier = self._earlier, []
        for change in earlier + changes:
            name = change.item.key.name
            assert change.revision > self.at, "again, or out of order"
            self.at = change.revision
            self.seen.append((change.revision, change.type, name))
            # What a client keeps of it never contradicts itself.
            assert (name in self.state) == (change.type != "ADDED")
            (self.state.discard if change.type == "DELETED" else self.state.add)(name)
        self._position += len(changes)


step = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES)),
    st.tuples(st.just("put"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("watch"), st.integers(0, 30).map(str)),
    st.tuples(st.just("read"), st.integers(0, 5).map(str)),
    st.tuples(st.sampled_from(["reopen", "crash", "forget"]), st.just("")),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(step, max_size=60), held=st.sampled_from([100, 400, 1 << 20]))
@example(
    steps=[("put", "a"), ("watch", "0"), *[("put", "a")] * 12, ("crash", ""), ("read", "0")],
    held=1 << 20,
)
@example(steps=[*[("put", "a")] * 3, *[("put", "b")] * 3, ("watch", "4"), ("read", "0")], held=100)
def test_every_later_event_once_in_order(
    steps: list[tuple[str, str]], held: int, tmp_path_factory: Any
) -> None:
    path: Path = tmp_path_factory.mktemp("watchers") / "plane.db"
    short = [(feeds, "HISTORY_COUNT", 4), (stores, "COMPACT_EVERY", 7), (stores, "KEEP", 3)]
    before = [(module, name, getattr(module, name)) for module, name, _ in short]
    for module, name, value in short:
        setattr(module, name, value)
    try:
        asyncio.run(_story(steps, path, held))
    finally:
        for module, name, value in before:
            setattr(module, name, value)


async def _story(steps: list[tuple[str, str]], path: Path, size: int) -> None:
    def opened() -> ObjectStore:
        return ObjectStore(Journal(path, durable=False), None, feeds.Recent(2, size))

    store = opened()
    log: list[Event] = []
    watchers: list[Watcher] = []

    def state(at: int) -> set[str]:
        there: set[str] = set()
        for revision, type_, name in log:
            if revision <= at:
                (there.discard if type_ == "DELETED" else there.add)(name)
        return there

    for number, (what, text) in enumerate(steps):
        key = Key("things", "default", text)
        match what:
            case "put":
                new = text not in state(store.revision)
                made = await store.put(key, {"metadata": {"name": text}, "value": number})
                log.append((made.revision, "ADDED" if new else "MODIFIED", text))
            case "remove" if (held := store.latest(key)) is not None:
                gone = await store.remove(key, held.obj)
                log.append((gone.revision, "DELETED", text))
            case "watch":
                start = min(int(text), store.revision)
                watchers.append(Watcher(store, start, state(start)))
                await watchers[-1].connect(store)
            case "read" if watchers:
                watchers[int(text) % len(watchers)].read(store)
            case "forget":
                # What a new plane does before it is served: who watched would begin again.
                store.forget_history()
                for watcher in watchers:
                    await watcher.connect(store)
            case "reopen" | "crash":
                if what == "reopen":
                    await store.close("reopened")
                else:
                    store.abandon()
                store = opened()
                for watcher in watchers:
                    await watcher.connect(store)
    for watcher in watchers:
        watcher.read(store)
        assert watcher.state == state(store.revision)
        if watcher.seen:
            first = watcher.seen[0][0]
            assert watcher.seen == [entry for entry in log if entry[0] >= first]
        assert watcher.at == store.revision or not [e for e in log if e[0] > watcher.at]
    await store.close("done")


def test_old_changes_are_kept_as_bytes_and_told_as_ever(tmp_path: Path) -> None:
    """Who comes late sees what everybody saw, though the objects were let go of meanwhile."""

    async def story() -> None:
        store = ObjectStore(Journal(tmp_path / "plane.db", durable=False), None)
        key = Key("things", "default", "a")
        for number in range(3 * feeds.WARM_COUNT):
            await store.put(key, {"metadata": {"name": "a"}, "number": number})
        await store.remove(key, {"metadata": {"name": "a"}, "number": -1})
        changes = store.feed("things").read(0)
        assert changes is not None
        kept = [change for change in changes if change.item._obj is not None]
        assert len(kept) <= feeds.WARM_COUNT + 1
        told = [(change.type, change.item.obj["number"]) for change in changes]
        assert told[0] == ("ADDED", 0)
        assert told[1:-1] == [("MODIFIED", n) for n in range(1, 3 * feeds.WARM_COUNT)]
        assert told[-1] == ("DELETED", -1)
        assert changes[-1].previous is not None
        assert changes[-1].previous.obj["number"] == 3 * feeds.WARM_COUNT - 1
        await store.close("done")

    asyncio.run(story())


def test_what_is_kept_as_objects_is_bounded_for_all_planes_together(tmp_path: Path) -> None:
    async def story() -> None:
        recent = feeds.Recent(4)
        stores = [
            ObjectStore(Journal(tmp_path / f"{at}.db", durable=False), None, recent)
            for at in range(3)
        ]
        key = Key("things", "default", "a")
        for number in range(5):
            for store in stores:
                await store.put(key, {"metadata": {"name": "a"}, "number": number})
        changes = [change for store in stores for change in store.feed("things").read(0) or ()]
        replaced = [change.previous for change in changes if change.previous is not None]
        assert len(replaced) == 12
        assert sum(item._obj is not None for item in replaced) <= 4
        for store in stores:
            found = store.get(key)
            assert found is not None
            assert found._obj is not None  # what is there now stays
            await store.close("done")

    asyncio.run(story())


def test_what_is_no_longer_held_is_read_from_the_file(tmp_path: Path) -> None:
    """With threads that write meanwhile: a watch from long ago misses nothing, and says it once."""

    async def story() -> None:
        threads = Writers(2)
        recent = feeds.Recent(2, 500)
        stores_ = [ObjectStore(Journal(tmp_path / f"{at}.db"), threads, recent) for at in range(2)]
        store, other = stores_
        key = Key("things", "default", "a")
        done = asyncio.Event()

        async def write() -> None:
            for number in range(150):
                await store.put(key, {"metadata": {"name": "a"}, "number": number})
                await other.put(key, {"metadata": {"name": "a"}, "number": number})
                await store.put(Key("others", "", "b"), {"metadata": {"name": "b"}})
            done.set()

        async def watch(start: int) -> list[int]:
            seen: list[int] = []
            at = start
            while True:
                ended = done.is_set()
                feed = store.feed("things")
                earlier = await store.recall("things", at)
                changes = feed.read(feed.position(at if earlier is None else feed.floor))
                assert changes is not None
                for change in [*(earlier or ()), *changes]:
                    assert change.revision > at
                    assert change.type == ("MODIFIED" if seen or start else "ADDED")
                    if change.previous is not None:
                        number = change.item.obj["number"]
                        assert change.previous.obj["number"] == number - 1
                    at = change.revision
                    seen.append(change.item.obj["number"])
                if ended:
                    return seen
                await asyncio.sleep(0.003)

        first, _ = await asyncio.gather(watch(0), write())
        assert first == list(range(150))
        assert len(list(store.feed("things").newest_first())) < 20
        assert await watch(1) == list(range(1, 150))
        assert await watch(store.revision) == []
        for one in stores_:
            await one.close("done")
        threads.close()

    asyncio.run(story())


def test_what_the_file_has_no_longer_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "COMPACT_EVERY", 10)
    monkeypatch.setattr(stores, "KEEP", 5)

    async def story() -> None:
        store = ObjectStore(
            Journal(tmp_path / "plane.db", durable=False), None, feeds.Recent(2, 200)
        )
        for number in range(40):
            await store.put(Key("things", "", "a"), {"metadata": {"name": "a"}, "number": number})
        with pytest.raises(Gone):
            await store.recall("things", 3)
        earlier = await store.recall("things", 31)
        assert earlier is not None
        assert [change.revision for change in earlier][:2] == [32, 33]
        await store.close("done")

    asyncio.run(story())
