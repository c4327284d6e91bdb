"""`kubectl exec` and probes take nothing of the node into a container, and nothing of it out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from bidplane.node.process.records import PodFolder
from bidplane.node.process.sandbox.confinement import find_bubblewrap

pytestmark = pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap")

LIST = "ls -l /proc/self/fd | sed -n 's/.* \\([0-9]*\\) -> .*/\\1/p' | tr '\\n' ' '; echo"
EVIL = {"name": "evil", "emptyDir": {}}
# A library that leaves a file on whatever machine loads it, if a compiler is here.
SOURCE = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    int file = open("MARK", O_CREAT | O_WRONLY, 0644);
    if (file >= 0) close(file);
}
"""


def test_no_descriptor_of_the_node_is_inherited(box: Any) -> None:
    async def story(box: Any) -> None:
        held = os.open("/etc/passwd", os.O_RDONLY)
        os.set_inheritable(held, True)  # as whatever a supervisor handed down
        try:
            await box.create("main", f"{LIST}; exec sleep 600")
            await box.until_phase("main", "Running")
            await box.until_said("main", "0 1 2 3 \n")
            for tty in (False, True):
                _, out, _ = await box.exec("main", "sh", "-c", LIST, tty=tty)
                # `ls` opens the folder itself.
                assert out.split() == ["0", "1", "2", "3"], (tty, out)
        finally:
            os.close(held)

    box(story)


def test_programs_of_the_container_do_not_stand_in_for_ours(box: Any) -> None:
    """`setpriv` was looked up in the container's PATH, before its rights were given up."""

    async def story(box: Any) -> None:
        fakes = ["setpriv", "nsenter", "setsid", "sh", "prlimit"]
        script = "; ".join(
            f"printf '#!/bin/sh\\ncp /proc/self/status /evil/{name}.ran\\nexit 9\\n'"
            f" > /evil/{name}; chmod +x /evil/{name}"
            for name in fakes
        )
        await box.create(
            "fakes",
            f"/bin/sh -c '{{ :; }}'; {script}; touch /evil/done; exec /bin/sleep 600",
            env=[{"name": "PATH", "value": "/evil:/usr/bin:/bin"}],
            volumeMounts=[{"name": "evil", "mountPath": "/evil"}],
            pod={"volumes": [EVIL]},
        )
        await box.until_phase("fakes", "Running")

        async def written() -> bool:
            return (await box.exec("fakes", "/bin/ls", "/evil/done"))[0] == 0

        await box.until(written)
        code, out, err = await box.exec(
            "fakes", "/bin/sh", "-c", "/bin/ls /evil/*.ran 2>/dev/null; /bin/echo ok"
        )
        assert (code, out) == (0, "ok\n"), err

    box(story)


def test_the_containers_environment_is_not_that_of_our_own_programs(
    box: Any, tmp_path: Any
) -> None:
    """LD_PRELOAD was given to nsenter and setpriv, which run as root, outside."""

    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler here")
    mark, source, library = (tmp_path / name for name in ("mark", "evil.c", "evil.so"))
    source.write_text(SOURCE.replace("MARK", str(mark)))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    subprocess.run(["true"], env={"LD_PRELOAD": str(library)}, check=True)
    assert mark.exists(), "the library does what it is for"
    mark.unlink()

    async def story(box: Any) -> None:
        env = [
            {"name": "LD_PRELOAD", "value": str(library)},
            {"name": "LD_LIBRARY_PATH", "value": str(tmp_path)},
            {"name": "SECRET", "value": "a=b\nc"},
        ]
        await box.create(
            "loader", 'printf "%s\n" "$SECRET$LD_LIBRARY_PATH"; exec sleep 600', env=env
        )
        await box.until_phase("loader", "Running")

        async def said() -> str:
            return str(await box.logs("loader"))

        # The container has its environment, to the byte; what runs outside has not.
        await box.until(said)
        assert f"c{tmp_path}" in await said()
        _, out, _ = await box.exec("loader", "sh", "-c", 'printf "%s" "$SECRET"')
        assert out == "a=b\nc"
        assert not mark.exists(), "a library of the tenant was loaded on the machine"

    box(story)


@pytest.mark.parametrize("by", ["start", "exec"])
def test_dangerous_system_calls_are_refused(box: Any, by: str) -> None:
    """A container may not make namespaces, load programs into the kernel, or push keystrokes."""
    script = (
        "import ctypes, errno, platform\\n"
        "libc = ctypes.CDLL(None, use_errno=True)\\n"
        "numbers = {'x86_64': (272, 321, 298, 425), 'aarch64': (97, 280, 241, 425)}\\n"
        "for number in numbers[platform.machine()]:\\n"
        "    ctypes.set_errno(0)\\n"
        "    libc.syscall(number, 0x10000000, 0, 0)\\n"
        "    print(errno.errorcode[ctypes.get_errno()])\\n"
    ).replace("\\n", "\n")

    async def story(box: Any) -> None:
        python = shutil.which("python3", path="/usr/bin:/bin")
        if python is None:
            pytest.skip("the machine has no Python of its own for a container")
        if by == "start":
            await box.create("caller", python, "-c", script)
            await box.until_phase("caller", "Succeeded")
            said = await box.logs("caller")
        else:
            await box.create("caller", "exec sleep 600")
            await box.until_phase("caller", "Running")
            _, said, _ = await box.exec("caller", python, "-c", script)
        assert set(said.split()) <= {"EPERM", "ENOSYS"}, said
        assert len(said.split()) == 4
        status = "grep -E 'Seccomp:|NoNewPrivs' /proc/self/status"
        if by == "exec":
            _, out, _ = await box.exec("caller", "sh", "-c", status)
            assert out == "NoNewPrivs:\t1\nSeccomp:\t2\n"

    box(story)


def test_what_a_supervisor_hands_down_goes_no_further(tmp_path: Any) -> None:
    """The event loop of our processes starts programs with all that can be inherited."""
    code = (
        "import os, subprocess, sys\n"
        "from bidplane.runtime.supervision.supervisor import keep_descriptors\n"
        "keep_descriptors()\n"
        "subprocess.run(['ls', '/proc/self/fd'], close_fds=False, check=True)\n"
    )
    with (tmp_path / "lock").open("w") as lock:
        done = subprocess.run(
            [sys.executable, "-c", code],
            pass_fds=[lock.fileno()],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == ["0", "1", "2", "3"]


def test_another_users_pod_may_not_enter_a_pods_folder(box: Any) -> None:
    async def story(box: Any) -> None:
        await box.create("closed", "exec sleep 600")
        pod = await box.until_phase("closed", "Running")
        folder = PodFolder(box.settings.pods, pod["metadata"]["uid"])
        mode = folder.path.stat().st_mode & 0o777
        user = folder.record().uid
        assert mode == (0o700 if user is None else 0o710)
        if user is not None:
            assert folder.path.stat().st_gid == user

    box(story)
