"""What `bidplane up` says by itself, and what it leaves for `bidplane status`."""

from __future__ import annotations

from pathlib import Path

from bidplane.runtime.installation import Installation
from bidplane.runtime.supervision.monitor import DISK_LEAST_BYTES, Monitor
from bidplane.runtime.supervision.statusfile import (
    InstallationStatus,
    PartStatus,
    ProcessState,
    StatusFile,
)


def test_a_disk_that_fills_up_is_said_once_and_so_is_room(tmp_path: Path) -> None:
    where = Installation(tmp_path)
    free, told = DISK_LEAST_BYTES, list[str]()
    monitor = Monitor(where, say=told.append, disk_free=lambda: free)
    monitor.look_at_disk()
    assert told == []
    free = 3 * 2**20
    monitor.look_at_disk()
    monitor.look_at_disk()
    (line,) = told
    assert "3 MiB left" in line
    known = where.status.read()
    assert known is not None
    assert "3 MiB left" in known.disk_problem
    free = DISK_LEAST_BYTES
    monitor.look_at_disk()
    assert told[1:] == ["disk: there is room again"]
    monitor.close()


def test_the_status_file_keeps_its_size_and_says_the_last_word(tmp_path: Path) -> None:
    """So that it can be written when the disk is full."""
    file = StatusFile(tmp_path / "status.json")
    assert file.read() is None
    part = PartStatus(name="server", state=ProcessState.READY, message="x" * 20_000)
    file.write(InstallationStatus(at=1.0, parts=(part,)))
    size = (tmp_path / "status.json").stat().st_size
    file.write(InstallationStatus(at=2.0, parts=(part, part)))
    file.write(InstallationStatus(at=3.0))
    assert (tmp_path / "status.json").stat().st_size == size
    assert file.read() == InstallationStatus(at=3.0)
    file.close()


def test_a_folder_is_held_while_a_process_holds_it(tmp_path: Path) -> None:
    where = Installation(tmp_path)
    assert not where.is_running
    where.create()
    where.lock()
    assert Installation(tmp_path).is_running
