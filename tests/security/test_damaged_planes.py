"""A plane's file that was emptied, cut or rolled back is refused by name; its neighbours work."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bidplane.api.kinds import CONFIG_MAP
from bidplane.errors import Unavailable
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.planes import check_keys
from bidplane.runtime.identity.credentials import Tokens
from bidplane.storage.sealing import Sealing


def _opened(folder: Path) -> Planes:
    return Planes(folder, clock=SystemClock(), tokens=Tokens(b"k" * 32))


async def _fill(folder: Path) -> None:
    planes = _opened(folder)
    for name in ("lab", "neighbour"):
        await planes.create(name, uid=f"uid-of-{name}")
        for number in range(30):
            data = {"x": "x" * 2000}
            obj = {"metadata": {"name": f"m-{number}"}, "data": data}
            await planes.client(name).create(CONFIG_MAP, obj, "default")
    planes.abandon()  # as kill -9: the write-ahead log is not in the file yet


def _empty(plane: Path) -> None:
    (plane / "plane.db").write_bytes(b"")
    (plane / "plane.db-wal").unlink()


def _lost(plane: Path) -> None:
    (plane / "plane.db").unlink()


def _cut(plane: Path) -> None:
    whole = (plane / "plane.db").read_bytes()
    (plane / "plane.db").write_bytes(whole[: len(whole) // 2])
    (plane / "plane.db-wal").unlink()


def _without_log(plane: Path) -> None:
    (plane / "plane.db-wal").unlink()


def _garbage(plane: Path) -> None:
    (plane / "plane.db").write_bytes(b"garbage" * 1000)
    (plane / "plane.db-wal").unlink()


@pytest.mark.parametrize("damage", [_empty, _cut, _without_log, _garbage])
def test_it_is_refused_by_name_and_its_neighbour_works(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    async def story() -> None:
        await _fill(tmp_path)
        damage(tmp_path / "lab")
        planes = _opened(tmp_path)
        assert len((await planes.client("neighbour").list(CONFIG_MAP)).items) >= 30
        for use in (
            lambda: planes.client("lab").list(CONFIG_MAP),
            lambda: planes.create("lab", uid="uid-of-lab"),
            lambda: planes.create("lab"),
        ):
            with pytest.raises(Unavailable) as refused:
                await use()
            assert refused.value.code == 503
            assert str(tmp_path / "lab" / "plane.db") in str(refused.value)
            assert "bidplane plane restore" in str(refused.value)
        # It can be deleted, and then it is a new plane.
        await planes.delete("lab")
        await planes.create("lab")
        await planes.close()

    asyncio.run(story())


def test_a_lost_file_is_no_new_plane(tmp_path: Path) -> None:
    async def story() -> None:
        await _fill(tmp_path)
        _lost(tmp_path / "lab")
        planes = _opened(tmp_path)
        with pytest.raises(Unavailable, match=r"plane\.db is empty"):
            await planes.create("lab", uid="uid-of-lab")
        await planes.close()

    asyncio.run(story())


def test_an_earlier_copy_without_the_mark_is_taken(tmp_path: Path) -> None:
    """A backup that is put back has its own mark, or none."""

    async def story() -> None:
        await _fill(tmp_path)
        planes = _opened(tmp_path)
        copy = tmp_path / "copy"
        await planes.snapshot("lab", copy)
        await planes.client("lab").delete(CONFIG_MAP, "m-0", "default")
        await planes.close()
        for path in (tmp_path / "lab").iterdir():
            path.unlink()
        shutil.copy(copy, tmp_path / "lab" / "plane.db")
        planes = _opened(tmp_path)
        assert len((await planes.client("lab").list(CONFIG_MAP)).items) >= 30
        await planes.close()

    asyncio.run(story())


def test_a_plane_of_an_earlier_release_has_no_mark(tmp_path: Path) -> None:
    async def story() -> None:
        await _fill(tmp_path)
        (tmp_path / "lab" / "plane.db-revision").unlink()
        planes = _opened(tmp_path)
        assert len((await planes.client("lab").list(CONFIG_MAP)).items) >= 30
        assert (tmp_path / "lab" / "plane.db-revision").exists()
        await planes.close()

    asyncio.run(story())


@pytest.mark.parametrize("damage", [_empty, _lost, _cut, _without_log, _garbage])
def test_an_installation_starts_with_a_damaged_plane(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """`bidplane up` looks into every plane for keys that are missing: it ended with a traceback."""

    async def story() -> None:
        await _fill(tmp_path)
        damage(tmp_path / "lab")
        check_keys(tmp_path, Sealing())
        planes = _opened(tmp_path)
        assert len((await planes.client("neighbour").list(CONFIG_MAP)).items) >= 30
        with pytest.raises(Unavailable, match=r"plane\.db"):
            await planes.create("lab", uid="uid-of-lab")
        await planes.close()

    asyncio.run(story())
