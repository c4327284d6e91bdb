"""A hostPath that the owner allows stays what it was when it was allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bidplane.core.pods.environment import ConfigError
from bidplane.core.pods.files import _default_mode, _item_mode
from bidplane.node.process.volumes import mounts, paths
from bidplane.node.process.volumes.mounts import Declared, VolumeSource


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    folder = tmp_path / "allowed"
    folder.mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("of the machine")
    return folder


def source(allowed: Path, name: str, kind: str = "") -> VolumeSource:
    volume = {"hostPath": {"path": str(allowed / name), "type": kind}}
    return mounts.host_path(volume, Declared(host_paths=[str(allowed)]))


def opened(found: VolumeSource, sub_path: str = "") -> str:
    """What would be mounted: the path of the descriptor that is bound."""
    wish = {"name": "v", "mountPath": "/v", **({"subPath": sub_path} if sub_path else {})}
    (mount,) = mounts.container_mounts({"volumeMounts": [wish]}, {"v": found}, {})
    descriptor = paths.open_beneath(mount.source, mount.inside or ".")
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def test_what_is_outside_is_refused(allowed: Path) -> None:
    (allowed / "link").symlink_to("../secret")
    for name in ("../secret", "link", "link/key", "x/../../secret"):
        with pytest.raises(ConfigError, match="not allowed on this node"):
            source(allowed, name)


def test_a_folder_that_becomes_a_link_after_it_was_allowed_is_not_followed(allowed: Path) -> None:
    (allowed / "data").mkdir()
    found = source(allowed, "data")
    assert opened(found) == str(allowed / "data")
    (allowed / "data").rename(allowed / "old")
    (allowed / "data").symlink_to(allowed.parent / "secret")
    with pytest.raises(OSError, match="leads out of"):
        opened(found)
    with pytest.raises(ConfigError, match="leads out of"):
        opened(found, "deeper")


def test_nothing_is_made_through_a_link(allowed: Path) -> None:
    for make in (paths.make_beneath, paths.touch_beneath):
        (allowed / "link").unlink(missing_ok=True)
        (allowed / "link").symlink_to("../secret")
        with pytest.raises(OSError, match="leads out of"):
            make(str(allowed), "link/made")
    assert [path.name for path in (allowed.parent / "secret").iterdir()] == ["key"]


def test_what_is_asked_for_is_made_inside(allowed: Path) -> None:
    assert opened(source(allowed, "a/b", "DirectoryOrCreate"), "c") == str(
        allowed / "a" / "b" / "c"
    )
    source(allowed, "a/file", "FileOrCreate")
    assert (allowed / "a" / "file").read_bytes() == b""
    assert opened(source(allowed, "")) == str(allowed)
    with pytest.raises(ConfigError, match="type check failed"):
        source(allowed, "a/file", "Directory")


def test_no_file_of_a_volume_takes_its_owners_rights() -> None:
    """Bits beyond 0777 would make a program of a ConfigMap run as somebody else."""
    assert _default_mode({"defaultMode": 0o4755}) == 0o755
    assert _item_mode({"mode": 0o6711}, 0o644) == 0o711
