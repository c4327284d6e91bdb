"""
A kernel of our own, for tests that need what this machine's may lack: cgroups v2, root rights.

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
    """Raised when the kernel is missing, could not be fetched, or did not run to its end."""


def find() -> Path:
    """The path of User Mode Linux: on PATH, or in the cache."""
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
    """The path of the cached program."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bidplane" / "uml" / PROGRAM


def fetch() -> Path:
    """Unpack Debian's package into the cache; nothing is installed."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise KernelError(f"there is no {program}: put {PROGRAM} on PATH in another way")
    target = cached()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as workshop:
        try:
            _run_command(["apt-get", "download", PACKAGE], workshop)
        except KernelError:
            if os.geteuid() != 0:
                raise
            _run_command(["apt-get", "update"], workshop)  # a new machine has no package lists
            _run_command(["apt-get", "download", PACKAGE], workshop)
        _run_command(["sh", "-c", "dpkg-deb -x *.deb unpacked"], workshop)
        (Path(workshop) / "unpacked/usr/bin" / PROGRAM).replace(target)
    return target


def _run_command(command: list[str], folder: str) -> None:
    """Run a command; raises `KernelError` with its last line if it fails."""
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if completed.returncode:
        last_line = completed.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise KernelError(f"{' '.join(command)} failed: {last_line[0]}")


def run(script: str, *, cwd: Path, megabytes: int = 1024, timeout: float = 300) -> tuple[int, str]:
    """Run a shell script as root of that kernel; return its exit code and its output."""
    program = find()
    with tempfile.TemporaryDirectory() as folder:
        init = Path(folder, "init")
        init.write_text(_INIT.format(cwd=cwd, script=script))
        init.chmod(0o755)
        command = [str(program), f"mem={megabytes}M", "rootfstype=hostfs", "rootflags=/", "ro"]
        command += [f"init={init}", f"uml_dir={folder}", "con=null", "con0=null,fd:1", "quiet"]
        memory = _memory_folder(megabytes) or folder
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"TMPDIR": memory, "HOME": folder},
            timeout=timeout,
            check=False,
        )
    output = completed.stdout.decode(errors="replace").replace("\r\n", "\n")
    exit_line = re.search(r"^exit: (\d+)$", output, re.M)
    if exit_line is None:
        raise KernelError(f"the kernel ended before its script: {output[-2000:]}")
    return int(exit_line[1]), output


def _memory_folder(megabytes: int) -> str:
    """
    Return the folder for the kernel's memory, which is a file: fast if that is itself in memory.

    Empty if there is no room for all of it: the kernel would end in the middle of its script.
    """
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return ""
    return "/dev/shm" if state.f_bavail * state.f_frsize > megabytes << 20 else ""


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
