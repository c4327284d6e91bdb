"""What a pod cannot do: see the machine, or undo its sandbox, not even by way of exec."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bidplane.errors import ApiError
from bidplane.node.process.container.images import Image, Images
from bidplane.node.process.records import PodFolder
from bidplane.node.process.sandbox.confinement import find_bubblewrap
from bidplane.node.process.volumes.mounts import Declared, Shared

pytestmark = pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap")

RIGHTS = ["grep", "-E", "CapEff|CapBnd|NoNewPrivs", "/proc/self/status"]
NONE = "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n"


def test_a_sandbox_hides_the_machine(box):
    async def story(box):
        await box.create(
            "curious",
            "ls / | tr '\\n' ' '; ls /root /home 2>&1 | head -1; cat /etc/shadow; ps ax | wc -l;"
            " touch /usr/x; hostname",
        )
        await box.until_phase("curious", "Succeeded")
        said = await box.logs("curious")
        assert "cannot access '/root'" in said
        assert "/etc/shadow: No such file" in said
        assert "Read-only file system" in said
        assert "curious\n" in said
        pod = await box.get("curious")
        user = PodFolder(box.settings.pods, pod["metadata"]["uid"]).record().uid
        assert user is None or user >= 200_000

    box(story)


def minimal(folder):
    """A file system of a few programs, without setpriv."""
    for name in ("sh", "sleep", "grep", "cat", "stty", "touch"):
        program = shutil.which(name)
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        words = listed.stdout.split()
        for path in [program, *(word for word in words if word.startswith("/"))]:
            target = folder / os.path.realpath(os.path.dirname(path)).lstrip("/")
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    for name in ("bin", "lib", "lib64"):
        if not (folder / name).exists() and os.path.islink(f"/{name}"):
            (folder / name).symlink_to(os.readlink(f"/{name}"))
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("image", ["tools", "minimal"])
def test_exec_has_no_more_rights_than_the_container(box, image):
    async def story(box):
        store = {"name": "m", "persistentVolumeClaim": {"claimName": "models"}}
        await box.create(
            "victim",
            "sleep 600",
            image=image,
            volumeMounts=[{"name": "m", "mountPath": "/m"}],
            pod={"volumes": [store]},
        )
        await box.until_phase("victim", "Running")
        assert await box.exec("victim", *RIGHTS) == (0, NONE, "")
        assert (await box.exec("victim", "cat", "/m/w"))[1] == "weights"
        # What the owner shows read-only stays so.
        attack = "mount -o remount,bind,rw /m; touch /m/x"
        code, _, said = await box.exec("victim", "sh", "-c", attack)
        assert code != 0
        assert "Read-only file system" in said
        pod = box.node.runtime.find(box.space, "victim")
        session = await box.node.runtime.exec(pod, "main", ["sh"], stdin=True, tty=True)
        session.resize(91, 23)
        await session.write(b"stty size; exit 7\n")
        shown = b"".join([data async for data in session.stdout()])
        assert b"23 91" in shown, shown
        assert await session.wait() == 7
        await session.close()
        code, _, said = await box.exec("victim", "/no/such/thing")
        assert code in (126, 127), said
        assert "/no/such/thing" in said

    def declared(box):
        folder = box.folder / "models"
        folder.mkdir()
        (folder / "w").write_text("weights")
        folder.chmod(0o777)
        return Declared(shared={"models": Shared(path=str(folder), read_only=True)})

    def images(box):
        root = minimal(Path(box.folder) / "root")
        return Images(images={"tools": Image(), "minimal": Image(root=root)})

    box(story, volumes=declared, images=images)


@pytest.mark.parametrize("image", ["tools", "minimal"])
def test_an_ordinary_pod_has_its_accounts_token(box, image):
    """As every pod of a cluster that does not say otherwise; and volumes in unusual places."""

    async def story(box):
        await box.until(lambda: account(box))
        odd = ["/usr/share/models/deep", "/srv/data", "/var/lib/thing"]
        await box.create(
            "usual",
            "cd /var/run/secrets/kubernetes.io/serviceaccount && cat namespace && test -s token"
            f" && test -s ca.crt && for d in {' '.join(odd)}; do touch $d/x || exit 1; done;"
            " cat /run/secrets/kubernetes.io/serviceaccount/namespace; test -e /usr/bin/sh",
            image=image,
            volumeMounts=[{"name": "v", "mountPath": path} for path in odd],
            pod={
                "automountServiceAccountToken": True,
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        )
        await box.until_phase("usual", "Succeeded")
        assert await box.logs("usual") == box.space * 2

    def images(box):
        root = Path(minimal(Path(box.folder) / "root"))
        (root / "var").mkdir(mode=0o755)
        (root / "var" / "run").symlink_to("/run")
        return Images(images={"tools": Image(), "minimal": Image(root=str(root))})

    box(story, images=images)


async def account(box):
    try:
        await box.client.request_token(box.space, "default", {"spec": {}})
    except ApiError:
        return False
    return True


@pytest.mark.parametrize(
    "asked",
    [
        {"livenessProbe": {"tcpSocket": {"host": "127.0.0.1", "port": 1}}},
        {"lifecycle": {"postStart": {"httpGet": {"host": "127.0.0.1", "port": 1}}}},
    ],
)
def test_an_untrusted_pod_cannot_have_the_node_connect_anywhere(box, asked):
    async def story(box):
        await box.create("asks", "sleep 600", **asked)
        await box.until_phase("asks", "Failed")
        status = (await box.get("asks"))["status"]
        assert status["reason"] == "Forbidden"
        assert "127.0.0.1: only trusted pods may name a host" in status["message"]

    box(story, trusted=[])
