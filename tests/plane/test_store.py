"""
The store against a simple model: any order of writes, watches, restarts and crashes.

And against `kill -9`: what was acknowledged is there, and nothing is half-written.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bidplane.errors import ApiError, Gone, Unavailable
from bidplane.plane.storage import feed as feeds
from bidplane.plane.storage.feed import Key
from bidplane.plane.storage.journal import Journal, JournalRow
from bidplane.plane.storage.store import ObjectStore
from bidplane.plane.storage.writers import Writers
from effort import effort

NAMES = ("a", "b", "c")


def _key(name: str) -> Key:
    return Key("things", "default", name)


def _obj(name: str, value: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "value": value}


def _open(path: Path) -> ObjectStore:
    return ObjectStore(Journal(path, durable=False), None)


step = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("reopen"), st.just("")),
    st.tuples(st.just("crash"), st.just("")),
    st.tuples(st.just("compact"), st.just("")),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(step, max_size=40))
@example(steps=[("put", "a"), ("put", "b"), ("remove", "a"), ("compact", ""), ("reopen", "")])
def test_the_store_is_a_log(steps: list[tuple[str, str]], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("store") / "plane.db"

    async def story() -> None:
        store = _open(path)
        state: dict[str, int] = {}
        log: list[tuple[int, str, str]] = []  # revision, type, name
        floor = 0
        for number, (what, name) in enumerate(steps):
            if what == "put":
                item = await store.put(_key(name), _obj(name, number))
                log.append((item.revision, "MODIFIED" if name in state else "ADDED", name))
                state[name] = number
            elif what == "remove" and name in state:
                latest = store.latest(_key(name))
                assert latest is not None
                item = await store.remove(_key(name), latest.obj)
                log.append((item.revision, "DELETED", name))
                del state[name]
            elif what == "reopen":
                await store.close("reopened")
                store = _open(path)
            elif what == "crash":
                store.abandon()
                store = _open(path)
            elif what == "compact":
                store.forget_history()
                store.journal.compact(store.revision)
                floor = store.revision
            assert store.revision == (log[-1][0] if log else 0)
            found = {item.key.name: item.obj["value"] for item in store.items("things")}
            assert found == state
        # A watcher from any revision sees every later event once, in order; or is told to list.
        feed = store.feed("things")
        for start in range(store.revision + 1):
            try:
                seen = feed.read(feed.position(start))
            except Gone:
                assert start < floor
                continue
            assert seen is not None
            events = [(change.revision, change.type, change.item.key.name) for change in seen]
            assert events == [entry for entry in log if entry[0] > start]
            # And the past can be seen as it was.
            past: dict[str, None] = {}
            for revision, type_, name in log:
                if revision <= start:
                    past[name] = None
                    if type_ == "DELETED":
                        del past[name]
            for after in ("", "a"):
                names = [name for name in sorted(past) if name > after]
                for most in (0, 1):
                    page, following = store.page_at("things", "default", start, _key(after), most)
                    assert [item.key.name for item in page] == (names[:most] if most else names)
                    assert following == len(names) - len(page)
        await store.close("done")

    asyncio.run(story())


def test_a_batch_that_fails_fails_for_all_and_is_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        with closing(Writers(1)) as threads:
            store = ObjectStore(Journal(tmp_path / "plane.db"), threads)
            await store.put(_key("a"), _obj("a", 1))
            whole = store.journal.append

            def broken(rows: Any) -> None:
                raise OSError("no space left on device")

            store.journal.append = broken  # type: ignore[method-assign]
            outcomes = await asyncio.gather(
                store.put(_key("a"), _obj("a", 2)),
                store.put(_key("b"), _obj("b", 2)),
                return_exceptions=True,
            )
            assert all(isinstance(found, Unavailable) for found in outcomes)
            store.journal.append = whole  # type: ignore[method-assign]
            assert [item.obj["value"] for item in store.items("things")] == [1]
            again = await store.put(_key("a"), _obj("a", 3))
            assert again.revision == 2
            await store.close("done")

    asyncio.run(story())


def test_readers_see_only_what_is_committed(tmp_path: Path) -> None:
    async def story() -> None:
        with closing(Writers(1)) as threads:
            store = ObjectStore(Journal(tmp_path / "plane.db"), threads)
            writing = asyncio.create_task(store.put(_key("a"), _obj("a", 1)))
            await asyncio.sleep(0)
            assert store.latest(_key("a")) is not None
            assert store.get(_key("a")) is None
            assert store.revision == 0
            await writing
            assert store.get(_key("a")) is not None
            await store.close("done")

    asyncio.run(story())


def test_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "HISTORY_COUNT", 8)

    async def story() -> None:
        store = _open(tmp_path / "plane.db")
        for number in range(100):
            await store.put(_key("a"), _obj("a", number))
        feed = store.feed("things")
        assert len(list(feed.newest_first())) <= 16
        with pytest.raises(Gone):
            feed.position(1)
        seen = feed.read(feed.position(98))
        assert seen is not None
        assert [change.revision for change in seen] == [99, 100]
        assert feed.read(0) is None
        await store.close("done")

    asyncio.run(story())


rows = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove", "compact"]), st.sampled_from(NAMES),
              st.integers(0, 5)),
    max_size=60,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(steps=rows)
def test_compaction_leaves_what_was_not_replaced_or_deleted(
    steps: list[tuple[str, str, int]], tmp_path_factory: Any
) -> None:
    """Whatever was compacted before, and however far back: as if it were the first time."""
    journal = Journal(tmp_path_factory.mktemp("journal") / "plane.db", durable=False)
    log: list[tuple[int, str, bool]] = []  # revision, key, deleted
    revision = compacted = 0
    for what, name, back in steps:
        if what != "compact":
            revision += 1
            log.append((revision, name, what == "remove"))
            journal.append([JournalRow(revision, name, revision, what == "remove", b"{}")])
            continue
        compacted = max(compacted, revision - back)
        journal.compact(compacted)
        newest = {key: at for at, key, _ in log if at <= compacted}
        log = [
            (at, key, deleted)
            for at, key, deleted in log
            if at > compacted or (newest[key] == at and not deleted)
        ]
        assert [(row.revision, row.key, row.deleted) for row in journal.rows()] == log
    journal.close()


def test_the_journal_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bidplane.plane.storage.store.COMPACT_EVERY", 50)
    monkeypatch.setattr("bidplane.plane.storage.store.KEEP", 10)

    async def story() -> None:
        store = _open(tmp_path / "plane.db")
        for number in range(500):
            await store.put(_key("a"), _obj("a", number))
        assert len(list(store.journal.rows())) <= 62
        await store.close("done")
        store = _open(tmp_path / "plane.db")
        assert store.revision == 500
        assert [item.obj["value"] for item in store.items("things")] == [499]
        await store.close("done")

    asyncio.run(story())


_WRITER = """
import asyncio, sys
from pathlib import Path
from bidplane.api.kinds import CONFIG_MAP
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import Tokens

async def main() -> None:
    planes = Planes(Path(sys.argv[1]), clock=SystemClock(), tokens=Tokens(b"k"))
    await planes.create("a")
    client = planes.client("a")
    async def one(worker: int) -> None:
        for number in range(100_000):
            name = f"l{sys.argv[2]}-w{worker}-{number}"
            await client.create(CONFIG_MAP, {"metadata": {"name": name}}, "default")
            print(name, flush=True)
    await asyncio.gather(*(one(worker) for worker in range(8)))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.explored
@pytest.mark.timeout(900)
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """Many times, on one plane: each life begins with what the last one left."""
    acknowledged: list[str] = []
    lives = effort(20, 200)
    for life in range(lives):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), str(life)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        said = [process.stdout.readline().strip() for _ in range(5 + 17 * life % 60)]
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read()
        # The last line may have been cut by the kill; an uncut one is a whole name.
        said += rest.split("\n")[:-1]
        process.wait()
        acknowledged += filter(None, said)
        journal = Journal(tmp_path / "a" / "plane.db")
        store = ObjectStore(journal, None)
        kept = {item.key.name for item in store.items("configmaps")}
        assert [name for name in acknowledged if name not in kept] == [], f"life {life}"
        revisions = [row.revision for row in journal.rows()]
        assert revisions == sorted(set(revisions))
        journal.close()
    assert len(acknowledged) > 10 * lives


def test_a_closed_store_refuses(tmp_path: Path) -> None:
    async def story() -> None:
        store = _open(tmp_path / "plane.db")
        await store.close("closed for tests")
        with pytest.raises(ApiError, match="closed for tests"):
            await store.put(_key("a"), _obj("a", 1))

    asyncio.run(story())


@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=6))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_batch_of_any_size_is_in_the_journal_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "plane.db"
    journal = Journal(path, durable=False)
    rows: list[Any] = []
    for size in sizes:
        first = len(rows) + 1
        batch = [
            JournalRow(
                n, f'things/default/"é{n}', first, n % 3 == 0, b"\0\xff" * (n % 5) + b"%d" % n
            )
            for n in range(first, first + size)
        ]
        journal.append(batch)
        rows += batch
    journal.close()
    again = Journal(path, durable=False)
    assert list(again.rows()) == rows
    again.close()


def test_what_ends_on_threads_is_told_on_the_loop_also_after_a_bug() -> None:
    async def story() -> None:
        told: list[BaseException | None] = []
        loop, all_told = asyncio.get_running_loop(), asyncio.Event()

        def bug(error: BaseException | None) -> None:
            raise RuntimeError("a bug")

        def hear(error: BaseException | None) -> None:
            assert asyncio.get_running_loop() is loop
            told.append(error)
            if len(told) == 40:
                all_told.set()

        with closing(Writers(3)) as writers:
            for _ in range(20):
                writers.submit(lambda: None, hear)
                writers.submit(lambda: None, bug)
                writers.submit(lambda: [][1], hear)  # type: ignore[arg-type]
            await asyncio.wait_for(all_told.wait(), 30)
        assert sum(isinstance(error, IndexError) for error in told) == 20

    asyncio.run(story())
