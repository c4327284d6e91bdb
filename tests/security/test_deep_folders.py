"""
A volume with folders in folders, far more than a path can name: it is measured or counted as too
large, it is removed with its pod, and the node works on for the others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bidplane.node.process.records import PodFolder
from bidplane.node.process.sandbox.confinement import find_bubblewrap
from bidplane.node.process.usage import counters
from bidplane.node.process.volumes.removal import remove_tree

DEPTH = 3_000  # the interpreter recurses a thousand times, and 1,024 files may be open
MEBIBYTE = 1 << 20


def dig(folder: Path, depth: int = DEPTH, name: str = "d") -> int:
    """Make folders in folders below `folder`; return the descriptor of the last."""
    current = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=current)
        inner = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    return current


def write(folder: int, size: int) -> None:
    with os.fdopen(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder), "wb") as file:
        file.write(bytes(size))


def test_a_deep_folder_is_removed(tmp_path: Path) -> None:
    kept, doomed = tmp_path / "kept", tmp_path / "doomed"
    for folder in (kept, doomed, doomed / "wide", doomed / "closed"):
        folder.mkdir()
    (kept / "file").write_text("of somebody else")
    (doomed / "link").symlink_to(kept)
    (doomed / "wide" / "file").write_text("x")
    (doomed / "closed" / "inner").mkdir()
    (doomed / "closed").chmod(0)
    last = dig(doomed)
    write(last, 1)
    os.close(last)
    remove_tree(doomed)
    assert list(tmp_path.iterdir()) == [kept]
    assert (kept / "file").read_text() == "of somebody else", "links are not followed"
    remove_tree(doomed)  # nothing is there, and nothing is said


def test_what_no_path_can_name_counts_as_the_whole_disk(tmp_path: Path) -> None:
    """A limit cannot be passed by hiding a file where it is not counted."""
    last = dig(tmp_path, depth=40, name="d" * 200)
    write(last, MEBIBYTE)
    os.close(last)
    size, _ = counters._folder_usage(tmp_path)
    state = os.statvfs(tmp_path)
    assert size == state.f_blocks * state.f_frsize
    remove_tree(tmp_path)


def test_a_folder_that_becomes_a_link_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(bytes(MEBIBYTE))
    (tmp_path / "volume" / "link").symlink_to(tmp_path / "other")
    assert counters._folder_usage(tmp_path / "volume")[0] < MEBIBYTE


@pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap")
def test_a_pod_with_a_deep_volume_is_evicted_and_removed(box: Any) -> None:
    async def story(box: Any) -> None:
        script = (
            "import os, time\n"
            "os.chdir('/v')\n"
            f"for _ in range({DEPTH}): os.mkdir('d' * 20); os.chdir('d' * 20)\n"
            "open('file', 'wb').write(bytes(2 << 20))\n"
            "print('made', flush=True)\n"
            "time.sleep(600)\n"
        )
        await box.create(
            "deep",
            "/usr/bin/python3",
            "-c",
            script,
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
            pod={"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]},
        )
        pod = await box.until_phase("deep", "Running")
        await box.until_said("deep", "made\n")
        box.clock.advance(20)  # to when the node looks next
        pod = await box.until_phase("deep", "Failed")
        assert pod["status"]["reason"] == "Evicted"
        folder = PodFolder(box.settings.pods, pod["metadata"]["uid"]).path
        await box.delete("deep", grace_seconds=0)
        await box.until(lambda: not folder.exists())

    box(story)
