"""
Power loss: a file system that forgets what was not synced, and may keep a part of it.

SQLite runs on a VFS of ours that remembers, for each file, what a disk would surely still have.
At any moment the power can go: the disk is written out as of then, with any subset of the
unsynced writes, and the plane opened from it must have every write that was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.plane.storage.feed import Key
from bidplane.plane.storage.journal import Journal
from bidplane.plane.storage.store import ObjectStore

_SECTOR = 512


class Disk(apsw.VFS):
    """Passes everything on to the real file system, and keeps what has been synced."""

    def __init__(self) -> None:
        self.vfs_name = f"disk-{secrets.token_hex(4)}"
        self.synced: dict[str, bytes] = {}
        self.pending: dict[str, list[tuple[int, bytes | None]]] = {}  # None truncates
        self.unlinked: set[str] = set()  # and the folder was not synced since
        super().__init__(self.vfs_name, "")

    def xOpen(self, name: Any, flags: list[int]) -> _File:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self.pending.pop(filename, None)
        self.unlinked.add(filename)
        if syncdir:
            self.sync_folder()

    def sync_folder(self) -> None:
        """What was removed from the folder is now surely gone."""
        for name in self.unlinked:
            self.synced.pop(name, None)
        self.unlinked.clear()

    def lose_power(self, folder: Path, dice: random.Random) -> None:
        """Write to `folder` what a disk might have: all that was synced, some that was not."""
        for name in sorted({*self.synced, *self.pending}):
            if name in self.unlinked and dice.random() < 0.5:
                continue
            content = bytearray(self.synced.get(name, b""))
            for offset, data in self.pending.get(name, ()):
                if name not in self.synced or dice.random() < 0.5:
                    continue  # a file that was never synced need not be there at all
                if data is None:
                    del content[offset:]
                    continue
                # Torn: only some sectors of a write reached the disk.
                for start in range(0, len(data), _SECTOR):
                    if dice.random() < 0.7:
                        part = data[start : start + _SECTOR]
                        at = offset + start
                        content.extend(b"\0" * max(0, at + len(part) - len(content)))
                        content[at : at + len(part)] = part
            if name in self.synced:
                (folder / Path(name).name).write_bytes(bytes(content))


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if hasattr(name, "filename") else str(name)
        # SQLite syncs the folder with the first sync of a journal or WAL that it made.
        self._new = self._name.endswith(("-wal", "-journal")) and not Path(self._name).exists()
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._disk.pending.setdefault(self._name, []).append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._disk.pending.setdefault(self._name, []).append((newsize, None))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        if self._new:
            self._new = False
            self._disk.unlinked.discard(self._name)
            self._disk.sync_folder()
        content = bytearray(self._disk.synced.get(self._name, b""))
        for offset, data in self._disk.pending.pop(self._name, ()):
            if data is None:
                del content[offset:]
            else:
                content.extend(b"\0" * max(0, offset + len(data) - len(content)))
                content[offset : offset + len(data)] = data
        self._disk.synced[self._name] = bytes(content)


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.unregister()


def _object(name: str, value: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "value": value, "pad": "x" * (value % 3000)}


def _kept(folder: Path) -> dict[str, int]:
    journal = Journal(folder / "plane.db")
    store = ObjectStore(journal, None)
    found = {item.key.name: item.obj["value"] for item in store.items("things")}
    journal.close()
    return found


async def _write(store: ObjectStore, steps: list[tuple[str, str]], done: dict[str, int]) -> None:
    for number, (step, name) in enumerate(steps):
        key = Key("things", "default", name)
        if step == "put":
            await store.put(key, _object(name, number))
            done[name] = number
        elif step == "remove" and (latest := store.latest(key)):
            await store.remove(key, latest.obj)
            del done[name]
        elif step == "compact":
            store.forget_history()
            store.journal.compact(store.revision)


_steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "remove", "compact"]), st.sampled_from("abcd")),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_steps, seed=st.integers(0, 1 << 16))
def test_every_acknowledged_write_survives(
    steps: list[tuple[str, str]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, after = tmp_path_factory.mktemp("disk"), tmp_path_factory.mktemp("after")
    disk = Disk()
    done: dict[str, int] = {}
    try:
        journal = Journal(folder / "plane.db", vfs=disk.vfs_name)
        asyncio.run(_write(ObjectStore(journal, None), steps, done))
        disk.lose_power(after, random.Random(seed))
        assert _kept(after) == done
        journal.close()
    finally:
        disk.unregister()


def test_the_test_can_fail(disk: Disk, tmp_path: Path) -> None:
    """Without syncing, the same power loss loses what was acknowledged."""
    folder, after = tmp_path / "before", tmp_path / "after"
    folder.mkdir()
    after.mkdir()
    journal = Journal(folder / "plane.db", durable=False, vfs=disk.vfs_name)
    done: dict[str, int] = {}
    asyncio.run(_write(ObjectStore(journal, None), [("put", "a"), ("put", "b")], done))
    disk.lose_power(after, random.Random(1))
    assert done == {"a": 0, "b": 1}
    assert _kept(after) != done
    journal.close()
