"""
The sandbox, as a chain of commands in front of the container's own.

    nsenter     into the pod's network
    setpriv     as the pod's user
    bwrap       with its own processes, its own view of the file system

Where bubblewrap is missing there is no sandbox: a container sees what its user sees, and
its volumes are mounted in a mount namespace if the agent is root. That is for trusted
pods only, and for volumes where it can be done at all.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from bidplane.core.pods.environment import ConfigError
from bidplane.node.process import joining, runs, view
from bidplane.node.process.records import State
from bidplane.node.process.shim import INFO_DESCRIPTOR
from bidplane.node.process.view import Mount

# Who enters a sandbox has all rights in it, and must give them up as bubblewrap did.
_NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--no-new-privs", "--")


class Confined(msgspec.Struct, frozen=True, kw_only=True):
    """What the chain is made of."""

    argv: Sequence[str]
    cwd: str = ""
    hostname: str = ""
    mounts: Sequence[Mount] = ()
    enter: Sequence[str] = ()  # the network
    uid: int | None = None  # outside
    inner_uid: int = 0
    inner_gid: int = 0
    root: str = ""
    paths: Sequence[str] = ()
    devices: Sequence[str] = ()  # UUIDs of GPUs
    read_only_root: bool = False
    processes: int | None = None  # at most, where nothing else keeps it from more
    # What only an engine that runs images needs.
    name: str = ""
    image: str = ""
    env: Sequence[str] = ()
    stdin: bool = False
    tty: bool = False
    replaces_entrypoint: bool = False


def find_bubblewrap() -> str | None:
    """bwrap, if it is here and may do what we need; installed is not enough."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    trial = [found, "--unshare-user", "--unshare-pid", "--uid", "0", "--ro-bind", "/", "/"]
    try:
        done = subprocess.run(
            [*_as_nobody(), *trial, "--proc", "/proc", "--dev", "/dev", "true"],
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found if done.returncode == 0 else None


def _as_nobody() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def resolved(words: list[str]) -> list[str]:
    """The command with its first word as a path."""
    first = words[0] if "/" in words[0] else shutil.which(words[0])
    if first is None:
        raise ConfigError(f"there is no `{words[0]}` on this machine")
    return [first, *words[1:]]


class Engine(Protocol):
    """One way to run a container as a process under a shim."""

    kind: str
    sandboxed: bool
    maps_images: bool  # images are looked up in the node's mapping, not run themselves
    tells_inside: bool  # bubblewrap: the container's processes have numbers of their own
    own_user: bool

    def command(self, what: Confined) -> list[str]: ...

    def beside(self, what: Confined, state: State, argv: Sequence[str]) -> list[str]:
        """The same for a command that joins the container: `exec`, probes, hooks."""

    async def destroy(self, what: Confined, state: State) -> None:
        """Kill it, and all it started."""


class Bubblewrap:
    kind, sandboxed, maps_images, tells_inside = "bubblewrap", True, True, True

    def __init__(self, path: str) -> None:
        self._path = path
        self.own_user = os.geteuid() == 0

    def command(self, what: Confined) -> list[str]:
        user = _as_user(what.uid) if what.uid is not None else []
        words = [*what.enter, *user, self._path, *_bwrap(what), "--"]
        if what.processes is not None and not what.root:
            # Inside: there the kernel counts only what is in this sandbox.
            words += ["prlimit", f"--nproc={what.processes}"]
        return resolved([*words, *what.argv])

    def beside(self, what: Confined, state: State, argv: Sequence[str]) -> list[str]:
        pid = state.inside or state.pid
        if what.root and shutil.which("setpriv", path=_folders(what.root)) is None:
            told = [pid, what.cwd or "/", what.inner_uid, what.inner_gid, int(what.tty)]
            return [sys.executable, "-I", "-S", joining.__file__, *map(str, told), *argv]
        target, root = f"--target={pid}", os.geteuid() == 0
        rest = ["--mount", "--ipc", "--uts", f"--wdns={what.cwd or '/'}"]
        rest += ["--net"] if what.enter else []  # else it is ours, and not the sandbox's to enter
        if root:
            user = ["--user"]
            rest += [f"--setuid={what.inner_uid}", f"--setgid={what.inner_gid}"]
        else:
            user = ["--user", "--preserve-credentials"]  # only our own have a number inside
        argv = [*_NO_RIGHTS, *argv]
        if not what.tty:
            return resolved(["nsenter", target, "--pid", *user, *rest, "--", *argv])
        # A shell wants a terminal whose session began inside: there, ours has no number. So
        # first among its processes, then a session, then the rest.
        first, then = ([], user) if root else (user, [])
        words = ["nsenter", target, "--pid", *first, "setsid", "--ctty", "nsenter", target, *then]
        return resolved([*words, *rest, "--", *argv])

    async def destroy(self, what: Confined, state: State) -> None:
        runs.kill(state)


class Bare:
    kind, sandboxed, maps_images, tells_inside, own_user = "none", False, True, False, False

    def command(self, what: Confined) -> list[str]:
        return resolved([*what.enter, *_bare(what), *what.argv])

    def beside(self, what: Confined, state: State, argv: Sequence[str]) -> list[str]:
        words = [*what.enter]
        if os.geteuid() == 0:
            words += ["nsenter", f"--target={state.pid}", "--mount", f"--wdns={what.cwd or '/'}"]
        words += _as_user(what.uid) if what.uid is not None else []
        return resolved([*words, *(["setsid", "--ctty", "--wait"] if what.tty else ()), *argv])

    async def destroy(self, what: Confined, state: State) -> None:
        runs.kill(state)


class Podman:
    """The image itself, in Podman; GPUs by their CDI names."""

    kind, sandboxed, maps_images, tells_inside, own_user = "podman", True, False, False, False

    def __init__(self, path: str) -> None:
        self._path = path

    def command(self, what: Confined) -> list[str]:
        words = [self._path, "run", "--rm", "--pull=never", f"--name={what.name}"]
        words += ["--cgroups=disabled", "--log-driver=none"]  # the shim has both
        if what.enter:
            words.append(f"--network=ns:{what.enter[-1].partition('=')[2]}")
        else:
            words.append("--network=host")
        words += ["--interactive"] * what.stdin + ["--tty"] * what.tty
        words += ["--read-only"] * what.read_only_root
        words += [f"--env={name}" for name in what.env]
        words += [f"--device=nvidia.com/gpu={device}" for device in what.devices]
        if what.hostname and what.enter:
            words.append(f"--hostname={what.hostname}")
        if what.cwd:
            words.append(f"--workdir={what.cwd}")
        for mount in what.mounts:
            words.append(f"--volume={mount.source}:{mount.target}{':ro' * mount.read_only}")
        if what.argv and what.replaces_entrypoint:
            words.append(f"--entrypoint={msgspec.json.encode(what.argv).decode()}")
            return [*words, what.image]
        return [*words, what.image, *what.argv]

    def beside(self, what: Confined, state: State, argv: Sequence[str]) -> list[str]:
        return [
            self._path,
            "exec",
            *["--interactive"] * what.stdin,
            *["--tty", "--env=TERM"] * what.tty,
            what.name,
            *argv,
        ]

    async def destroy(self, what: Confined, state: State) -> None:
        process = await asyncio.create_subprocess_exec(
            self._path,
            "rm",
            "--force",
            "--time=0",
            what.name,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await process.wait()
        runs.kill(state)


def _folders(root: str) -> str:
    return ":".join(f"{root}/{folder}" for folder in ("usr/bin", "bin", "usr/sbin", "sbin"))


def _as_user(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def _bwrap(what: Confined) -> Iterator[str]:
    yield from ("--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc")
    yield from ("--uid", str(what.inner_uid), "--gid", str(what.inner_gid))
    if what.hostname:
        yield from ("--unshare-uts", "--hostname", what.hostname)
    yield from view.shown(
        what.mounts,
        root=what.root,
        paths=what.paths,
        gpus=bool(what.devices),
        own_network=bool(what.enter),
    )
    if what.read_only_root:
        yield from ("--remount-ro", "/")
    yield from ("--chdir", what.cwd or "/")
    yield from ("--info-fd", str(INFO_DESCRIPTOR))


def _bare(what: Confined) -> list[str]:
    words: list[str] = []
    if what.mounts:
        if os.geteuid() != 0:
            raise ConfigError(
                f"a volume cannot be mounted at {what.mounts[0].target}: this node has no"
                " bubblewrap and does not run as root"
            )
        script = "set -e; "
        for mount in what.mounts:
            script += _mount(mount)
        words += ["unshare", "--mount", "--propagation", "private"]
        words += ["sh", "-c", script + 'exec "$@"', "sh"]
    if what.uid is not None:
        words += _as_user(what.uid)
    if what.cwd:
        words += ["env", f"--chdir={what.cwd}"]
    return words


def _mount(mount: Mount) -> str:
    source, target = _quoted(mount.source), _quoted(mount.target)
    if Path(mount.source).is_dir():
        # An empty folder may stay behind; what is mounted on it only the pod sees.
        made = f"[ -d {target} ] || mkdir -p {target}; "
    else:
        made = f'[ -e {target} ] || {{ mkdir -p "$(dirname {target})"; : > {target}; }}; '
    only = f"mount -o remount,bind,ro {target}; " if mount.read_only else ""
    return f"{made}mount --bind {source} {target}; {only}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
