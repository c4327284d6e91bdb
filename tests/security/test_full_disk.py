"""A full disk: what is refused was not written, and the plane goes on when there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from bidplane.errors import Unavailable
from bidplane.plane.storage import store as stores
from bidplane.plane.storage.feed import Key
from bidplane.plane.storage.journal import Journal, JournalRow
from bidplane.plane.storage.store import ObjectStore
from bidplane.plane.storage.writers import Writers


class FullWhile(Journal):
    """A journal on a disk that is full while a step is at work."""

    full = ""
    after_commit = False

    def append(self, rows: Any) -> None:
        if self.full == "append" and not self.after_commit:
            raise apsw.FullError("database or disk is full")
        super().append(rows)
        if self.full == "append":
            raise apsw.IOError("disk I/O error")

    def compact(self, revision: int) -> None:
        if self.full == "compact":
            raise apsw.FullError("database or disk is full")
        super().compact(revision)


def _key(name: str) -> Key:
    return Key("things", "default", name)


async def _put(store: ObjectStore, name: str, value: str = "") -> None:
    await store.put(_key(name), {"metadata": {"name": name}, "value": value})


def _names(store: ObjectStore) -> list[str]:
    return [item.key.name for item in store.items("things")]


@pytest.mark.parametrize("inline", [True, False])
def test_a_compaction_that_fails_fails_no_write(
    tmp_path: Path, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "COMPACT_EVERY", 4)
    monkeypatch.setattr(stores, "KEEP", 2)

    async def story() -> None:
        journal = FullWhile(tmp_path / "plane.db", durable=False)
        journal.full = "compact"
        store = ObjectStore(journal, None if inline else Writers(1))
        for number in range(20):
            await _put(store, f"n-{number:02}")
        assert int(journal.fact("compacted") or 0) == 0
        journal.full = ""
        for number in range(stores._COMPACT_AGAIN):
            await _put(store, f"n-{number % 20:02}", str(number))
        await store.close("done")
        again = Journal(tmp_path / "plane.db", durable=False)
        assert int(again.fact("compacted") or 0) > 0, "tried again when there was room"
        store = ObjectStore(again, None)
        assert _names(store) == [f"n-{number:02}" for number in range(20)]

    asyncio.run(story())


@pytest.mark.parametrize("inline", [True, False])
def test_what_is_refused_was_not_written(tmp_path: Path, inline: bool) -> None:
    async def story() -> None:
        journal = FullWhile(tmp_path / "plane.db", durable=False)
        store = ObjectStore(journal, None if inline else Writers(1))
        await _put(store, "before")
        journal.full = "append"
        with pytest.raises(Unavailable):
            await _put(store, "refused")
        journal.full = ""
        await _put(store, "after")
        assert _names(store) == ["after", "before"]
        await store.close("done")
        assert _names(ObjectStore(Journal(tmp_path / "plane.db"), None)) == ["after", "before"]

    asyncio.run(story())


def test_an_error_after_the_commit_is_no_refusal(tmp_path: Path) -> None:
    """It is in the journal, and would be seen after a restart: so it was written."""

    async def story() -> None:
        journal = FullWhile(tmp_path / "plane.db", durable=False)
        store = ObjectStore(journal, None)
        journal.full, journal.after_commit = "append", True
        await _put(store, "written")
        journal.full = ""
        await _put(store, "next")
        assert _names(store) == ["next", "written"]

    asyncio.run(story())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_real_disk_that_fills_and_empties(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "COMPACT_BYTES", 256 << 10)
    monkeypatch.setattr(stores, "_COMPACT_AGAIN", 4)

    async def story() -> None:
        store = ObjectStore(Journal(small_disk / "plane.db"), Writers(1))
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"\0" * (3 << 20))
        acknowledged: dict[str, str] = {}
        refused = 0
        for number in range(400):
            if number == 300:
                ballast.unlink()
            name, value = f"n-{number % 40}", f"{number} " + "x" * 30_000
            try:
                await _put(store, name, value)
            except Unavailable:
                refused += 1
                assert number < 310, "it goes on by itself when there is room"
            else:
                acknowledged[name] = value
        assert refused, "the disk was full"
        seen = {item.key.name: item.obj["value"] for item in store.items("things")}
        assert seen == acknowledged
        await store.close("done")
        again = ObjectStore(Journal(small_disk / "plane.db"), None)
        assert {item.key.name: item.obj["value"] for item in again.items("things")} == acknowledged

    asyncio.run(story())


def test_deleting_gives_the_disk_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "COMPACT_BYTES", 1 << 20)

    async def story() -> None:
        store = ObjectStore(Journal(tmp_path / "plane.db", durable=False), Writers(1))
        for number in range(60):
            await _put(store, f"n-{number}", "x" * 200_000)
        before = store.journal.size()
        assert before > 12 << 20
        for item in store.items("things"):
            await store.remove(item.key, item.obj)
        await _put(store, "last")
        await store.close("done")
        assert store.journal.size() < before / 3
        assert _names(ObjectStore(Journal(tmp_path / "plane.db"), None)) == ["last"]

    asyncio.run(story())


def test_a_file_of_an_earlier_release_gives_its_disk_back_too(tmp_path: Path) -> None:
    path = tmp_path / "plane.db"
    old = apsw.Connection(str(path))
    old.execute("PRAGMA page_size = 2048; PRAGMA auto_vacuum = NONE; PRAGMA journal_mode = WAL")
    old.execute("CREATE TABLE x (y)")
    old.execute("DROP TABLE x")
    old.close()
    journal = Journal(path, durable=False)
    rows = [JournalRow(n, f"things/a/{n}", n, False, b"x" * 100_000) for n in range(1, 60)]
    journal.append(rows)
    journal.append([JournalRow(n + 60, row.key, n, True, b"{}") for n, row in enumerate(rows, 1)])
    before = journal.size()
    journal.compact(200)
    journal.shrink()
    assert journal.size() < before / 3
    journal.close()
