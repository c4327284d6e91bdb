"""
A subPath never leads out of its volume, however quickly a neighbour swaps it for a link.

The kernel resolves it beneath the volume in one step, and what was found then is what is mounted.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from bidplane.node.process.sandbox.confinement import find_bubblewrap
from bidplane.node.process.volumes import paths

sandboxed = pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    (tmp_path / "secret").write_text("of the machine")
    return folder


@pytest.mark.parametrize("link", ["/", "..", "../secret", "/proc/self/root", "inner/../../secret"])
def test_a_link_out_of_the_volume_is_refused(volume: Path, link: str) -> None:
    (volume / "inner").mkdir()
    (volume / "sub").symlink_to(link)
    with pytest.raises(OSError, match="leads out of"):
        paths.make_beneath(str(volume), "sub/deeper")
    with pytest.raises(OSError, match="leads out of"):
        os.close(paths.open_beneath(str(volume), "sub"))


def test_a_link_inside_is_followed_as_kubernetes_does(volume: Path) -> None:
    (volume / "v2").mkdir()
    (volume / "now").symlink_to("v2")
    (volume / "v2" / "file").write_text("inside")
    descriptor = paths.open_beneath(str(volume), "now/file")
    assert os.readlink(f"/proc/self/fd/{descriptor}") == str(volume / "v2" / "file")
    os.close(descriptor)


def test_folders_that_are_missing_are_made_and_belong_to_the_volumes_owner(volume: Path) -> None:
    paths.make_beneath(str(volume), "a/b/c")
    made, owner = (volume / "a" / "b" / "c").stat(), volume.stat()
    assert (made.st_uid, made.st_gid) == (owner.st_uid, owner.st_gid)


def test_swapping_a_folder_for_a_link_all_the_while_opens_nothing_outside(volume: Path) -> None:
    """Ten thousand tries against one who does nothing else."""
    (volume / "real").mkdir()
    (volume / "link").symlink_to("/")
    (volume / "real" / "etc").mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for name in ("real", "link"):
                os.rename(volume / name, volume / "sub")
                os.rename(volume / "sub", volume / name)

    swapping = threading.Thread(target=swap)
    swapping.start()
    inside = refused = 0
    try:
        for _ in range(10_000):
            try:
                descriptor = paths.open_beneath(str(volume), "sub/etc")
            except OSError:
                refused += 1
                continue
            where = os.readlink(f"/proc/self/fd/{descriptor}")
            os.close(descriptor)
            assert where.startswith(str(volume)), where
            inside += 1
    finally:
        stop.set()
        swapping.join()
    assert refused


@sandboxed
def test_a_container_never_sees_the_machine_through_a_subpath(box: Any) -> None:
    """A sidecar swaps the folder for a link to `/` while containers that mount it start."""

    async def story(box: Any) -> None:
        swap = (
            "mkdir -p /data/real; touch /data/real/mine; ln -sfn / /data/link; while :; do"
            " mv -T /data/real /data/sub && mv -T /data/sub /data/real;"
            " mv -T /data/link /data/sub && mv -T /data/sub /data/link; done 2>/dev/null"
        )
        look = "ls -a /seen | tr '\\n' ' '; ls /seen/root /seen/var/lib 2>&1 | head -3"
        mount = {"name": "data", "mountPath": "/seen", "subPath": "sub"}
        seekers = [
            {
                "name": f"seeker-{n}",
                "image": "tools",
                "command": ["/bin/sh", "-c", look],
                "volumeMounts": [mount],
            }
            for n in range(8)
        ]
        await box.create(
            "racing",
            swap,
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
            pod={
                "volumes": [{"name": "data", "emptyDir": {}}],
                "restartPolicy": "Always",
                "initContainers": [],
                "containers": [
                    {
                        "name": "main",
                        "image": "tools",
                        "command": ["/bin/sh", "-c", swap],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    },
                    *seekers,
                ],
            },
        )

        async def tried() -> bool:
            pod = await box.get("racing")
            restarts = [
                status.get("restartCount", 0)
                for status in pod["status"].get("containerStatuses") or ()
                if status["name"] != "main"
            ]
            waiting = [
                status
                for status in pod["status"].get("containerStatuses") or ()
                if (status.get("state") or {}).get("waiting")
            ]
            return sum(restarts) + len(waiting) >= 8

        await box.until(tried)
        for n in range(8):
            try:
                said = await box.logs("racing", f"seeker-{n}")
            except Exception:  # it was refused each time, and never ran
                continue
            assert "boot" not in said.split(), said

    box(story)


@sandboxed
def test_subpaths_of_config_maps_and_of_new_folders_work(box: Any) -> None:
    from bidplane.api.kinds import CONFIG_MAP

    async def story(box: Any) -> None:
        await box.client.create(
            CONFIG_MAP, {"metadata": {"name": "settings"}, "data": {"a.conf": "one"}}, box.space
        )
        await box.create(
            "tidy",
            "cat /etc/app.conf; echo more > /scratch/file; cat /all/x/y/file;"
            " ls /proc/self/fd | wc -w",
            volumeMounts=[
                {"name": "settings", "mountPath": "/etc/app.conf", "subPath": "a.conf"},
                {"name": "data", "mountPath": "/scratch", "subPath": "x/y"},
                {"name": "data", "mountPath": "/all"},
            ],
            pod={
                "volumes": [
                    {"name": "settings", "configMap": {"name": "settings"}},
                    {"name": "data", "emptyDir": {}},
                ]
            },
        )
        await box.until_phase("tidy", "Succeeded")
        # 0, 1, 2 and what `ls` itself opens: no descriptor of ours is left in a container.
        assert await box.logs("tidy") == "onemore\n4\n"

    box(story)
