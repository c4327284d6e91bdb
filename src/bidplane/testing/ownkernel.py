"""
A kernel of our own, for what this machine's does not offer: cgroups v2, every right.

    python -m bidplane.testing.ownkernel fetch     Debian's user-mode-linux, into the cache

User Mode Linux is Linux as a program. Its root is this machine's file system, read-only; it
has its own processes, users, mounts and control groups, and no network but its loopback. It is
looked for on PATH, then in the cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bidplane.errors import UserError

PROGRAM = "linux.uml"
PACKAGE = "user-mode-linux"

# Not over /tmp: the sources may lie below it.
_INIT = """\
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p -m 1777 /run/tmp
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=0666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
cd {cwd}
(
{script}
)
echo "exit: $?"
echo o > /proc/sysrq-trigger
sleep 60
"""


class KernelError(UserError):
    """It is not there, could not be fetched, or did not come to its end."""


def find() -> Path:
    on_path = shutil.which(PROGRAM)
    if on_path:
        return Path(on_path)
    if cached().exists():
        return cached()
    raise KernelError(
        f"there is no {PROGRAM}: apt-get install {PACKAGE}, or"
        " python -m bidplane.testing.ownkernel fetch"
    )


def cached() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bidplane" / "uml" / PROGRAM


def fetch() -> Path:
    """Debian's package, unpacked; nothing is installed."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise KernelError(f"there is no {program}: put {PROGRAM} on PATH in another way")
    target = cached()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as workshop:
        try:
            _do(["apt-get", "download", PACKAGE], workshop)
        except KernelError:
            if os.geteuid() != 0:
                raise
            _do(["apt-get", "update"], workshop)  # a fresh machine knows of no packages
            _do(["apt-get", "download", PACKAGE], workshop)
        _do(["sh", "-c", "dpkg-deb -x *.deb unpacked"], workshop)
        (Path(workshop) / "unpacked/usr/bin" / PROGRAM).replace(target)
    return target


def _do(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise KernelError(f"{' '.join(command)} failed: {said[0]}")


def run(script: str, *, cwd: Path, megabytes: int = 1024, timeout: float = 300) -> tuple[int, str]:
    """Run a shell script as root of that kernel, and end it; returns its exit code, and words."""
    program = find()
    with tempfile.TemporaryDirectory() as folder:
        init = Path(folder, "init")
        init.write_text(_INIT.format(cwd=cwd, script=script))
        init.chmod(0o755)
        command = [str(program), f"mem={megabytes}M", "rootfstype=hostfs", "rootflags=/", "ro"]
        command += [f"init={init}", f"uml_dir={folder}", "con=null", "con0=null,fd:1", "quiet"]
        # Its memory is a file: where that is itself in memory, it is fast.
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else folder
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"TMPDIR": memory, "HOME": folder},
            timeout=timeout,
            check=False,
        )
    said = done.stdout.decode(errors="replace").replace("\r\n", "\n")
    ended = re.search(r"^exit: (\d+)$", said, re.M)
    if ended is None:
        raise KernelError(f"the kernel ended before its script: {said[-2000:]}")
    return int(ended[1]), said


def main() -> int:
    if sys.argv[1:] != ["fetch"]:
        print(__doc__)
        return 2
    try:
        print(find() if cached().exists() else fetch())
    except KernelError as error:
        print(f"own kernel: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
