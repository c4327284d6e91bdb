"""
A mount point inside a volume is looked for inside that volume, whatever links a pod put there.

Bubblewrap makes missing mount points while it sees the machine at `/oldroot`. Through a link to
there, a pod made folders and files on the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bidplane.core.pods.environment import ConfigError
from bidplane.node.process.sandbox.confinement import find_bubblewrap
from bidplane.node.process.sandbox.filesystem import Mount
from bidplane.node.process.volumes.mounts import check_mount_points


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    (folder / "real" / "deep").mkdir(parents=True)
    (folder / "inside").symlink_to("real")
    (folder / "out").symlink_to(f"/oldroot{tmp_path}")
    (folder / "up").symlink_to("../..")
    return folder


def check(volume: Path, *targets: str, inside: str = "") -> None:
    below = [Mount(str(volume.parent), target) for target in targets]
    check_mount_points([Mount(str(volume), "/v", False, inside), *below], root="")


@pytest.mark.parametrize("target", ["/v/out", "/v/out/made", "/v/up/made", "/v/real/../out/x"])
def test_a_link_out_of_the_volume_is_refused_by_name(volume: Path, target: str) -> None:
    with pytest.raises(ConfigError, match=r"mount path /v/.* leads out of the volume at /v"):
        check(volume, target)


def test_what_is_inside_is_accepted(volume: Path) -> None:
    check(volume, "/v/real", "/v/real/new/folder", "/v/inside/deep", "/v", "/vother/out", "/w")
    check(volume, "/v/deep/new", inside="real")


def test_the_nearest_volume_counts(volume: Path) -> None:
    check_mount_points(
        [
            Mount(str(volume), "/v"),
            Mount(str(volume / "real"), "/v/real"),
            Mount(str(volume), "/v/real/out"),
        ],
        root="",
    )


@pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap")
@pytest.mark.parametrize("by", ["volume", "message"])
def test_nothing_is_made_on_the_machine(box: Any, open_folder: Path, by: str) -> None:
    async def story(box: Any) -> None:
        outside = open_folder / "outside"
        outside.mkdir()
        outside.chmod(0o777)
        mount = {"name": "v", "mountPath": "/v"}
        plant = {
            "name": "plant",
            "image": "tools",
            "command": ["/bin/sh", "-c", f"ln -s /oldroot{outside} /v/out"],
            "volumeMounts": [mount],
        }
        container: dict[str, Any] = {"volumeMounts": [mount]}
        if by == "volume":
            container["volumeMounts"] = [mount, {"name": "w", "mountPath": "/v/out/made"}]
        else:
            container["terminationMessagePath"] = "/v/out/made"
        await box.create(
            "planted",
            "true",
            **container,
            pod={
                "initContainers": [plant],
                "volumes": [{"name": name, "emptyDir": {}} for name in ("v", "w")],
            },
        )
        status = await box.until_container(
            "planted", lambda c: "leads out of" in str(c["state"].get("waiting"))
        )
        assert "/v/out/made" in status["state"]["waiting"]["message"]
        assert list(outside.iterdir()) == []

    box(story)
