"""`--runtime podman`: the image itself, made here: nothing is pulled."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from bidplane.node.process.sandbox.confinement import Podman

IMAGE = "localhost/bidplane-test:1"


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    podman, busybox = shutil.which("podman"), Path("/bin/busybox")
    if podman is None or not busybox.exists():
        pytest.skip("needs podman and a static busybox")
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in ("sh", "echo", "sleep", "cat", "env"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    subprocess.run([podman, "import", str(archive), IMAGE], check=True, capture_output=True)
    tried = subprocess.run(
        [*Podman(podman).command(_trial()), "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode not in (0, 127):
        pytest.skip(f"podman cannot run a container here: {tried.stderr.strip()}")
    yield IMAGE
    subprocess.run([podman, "rmi", "--force", IMAGE], check=False, capture_output=True)


def _trial():
    from bidplane.node.process.sandbox.confinement import Confined

    return Confined(argv=["/bin/sh", "-c"], name="bidplane-podman-trial", image=IMAGE)


@pytest.mark.slow
def test_an_image_runs_is_asked_and_ends(box, image):
    async def story(box):
        await box.create(
            "real",
            "echo $WHO; cat /v/k; echo; trap 'exit 3' TERM; while :; do sleep 0.1; done",
            image=image,
            env=[{"name": "WHO", "value": "me"}],
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
            pod={
                "volumes": [
                    {
                        "name": "v",
                        "downwardAPI": {
                            "items": [{"path": "k", "fieldRef": {"fieldPath": "metadata.name"}}]
                        },
                    }
                ]
            },
        )
        await box.until_phase("real", "Running")
        await box.until_said("real", "me\nreal\n")
        assert await box.exec("real", "echo", "inside") == (0, "inside\n", "")
        await box.delete("real")
        await box.until(lambda: not box.node.runtime.pods())

    box(story, engine=Podman(shutil.which("podman")))
