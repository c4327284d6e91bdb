"""
The sandbox, as a chain of commands in front of the container's own.

    nsenter     into the pod's network
    setpriv     as the pod's user
    bwrap       with its own processes, its own view of the file system

Without bubblewrap there is no sandbox: a container sees all files that its user sees, and its
volumes are mounted in a mount namespace, which needs root. That is for trusted pods only.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from bidplane.core.pods.environment import ConfigError
from bidplane.node.process.container import shims
from bidplane.node.process.container.shim import INFO_DESCRIPTOR
from bidplane.node.process.records import StartRecord
from bidplane.node.process.sandbox import filesystem, join, seccomp
from bidplane.node.process.sandbox.descriptors import Descriptor, place
from bidplane.node.process.sandbox.filesystem import Mount

# The environment of our own programs that run before the sandbox. They must not see the
# container's: with its LD_PRELOAD they would run the container's code with our rights.
_OUTSIDE = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_FILTER = seccomp.program()
_TRIAL_SECONDS = 60.0  # a busy machine must not be taken for one without a sandbox


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """A command as it is started: arguments, environment, and files that are open in it."""

    argv: list[str]
    env: Mapping[str, str] = {}
    descriptors: Sequence[Descriptor] = ()


class Confined(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one container, from which an engine makes its command line."""

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
    # Only for engines that run images.
    name: str = ""
    image: str = ""
    env: Mapping[str, str] = {}
    stdin: bool = False
    tty: bool = False
    replaces_entrypoint: bool = False


def find_bubblewrap() -> str | None:
    """Return the path of bwrap if it is installed and a trial run succeeds."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    listed = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
    if "--bind-fd" not in listed.stdout + listed.stderr:
        return None  # it mounts by names alone, which pods may change under its hands
    trial = [path, "--unshare-user", "--unshare-pid", "--uid", "0", "--ro-bind", "/", "/"]
    try:
        done = subprocess.run(
            [*_as_nobody(), *trial, "--proc", "/proc", "--dev", "/dev", "true"],
            capture_output=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if done.returncode == 0 else None


def _as_nobody() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def with_program_path(argv: list[str]) -> list[str]:
    """Return the command with its program as a path; raises `ConfigError` if it is missing."""
    first = argv[0] if "/" in argv[0] else shutil.which(argv[0])
    if first is None:
        raise ConfigError(f"there is no `{argv[0]}` on this machine")
    return [first, *argv[1:]]


class ContainerEngine(Protocol):
    """One way to run a container as a process under a shim."""

    kind: str
    sandboxed: bool
    maps_images: bool  # images are looked up in the node's mapping, not run themselves
    tells_inside: bool  # bubblewrap: the container's processes have numbers of their own
    own_user: bool

    def command(self, container: Confined) -> CommandLine: ...

    def join_command(
        self, container: Confined, state: StartRecord, argv: Sequence[str]
    ) -> CommandLine:
        """Return the command line of a command that joins the container: `exec`, probes, hooks."""

    async def destroy(self, container: Confined, state: StartRecord) -> None:
        """Kill the container's processes."""


class Bubblewrap:
    kind, sandboxed, maps_images, tells_inside = "bubblewrap", True, True, True

    def __init__(self, path: str) -> None:
        self._path = path
        self.own_user = os.geteuid() == 0

    def command(self, container: Confined) -> CommandLine:
        user = _as_user(container.uid) if container.uid is not None else []
        opened: list[Descriptor] = [("data", _settings(container.env))]
        command = [
            *container.enter,
            *user,
            self._path,
            "--args",
            place(0),
            *_bwrap_arguments(container, opened),
            "--",
        ]
        if container.processes is not None and not container.root:
            # Inside: there the kernel counts only what is in this sandbox.
            command += [shutil.which("prlimit") or "prlimit", f"--nproc={container.processes}"]
        return CommandLine(
            argv=with_program_path([*command, *container.argv]), env=_OUTSIDE, descriptors=opened
        )

    def join_command(
        self, container: Confined, state: StartRecord, argv: Sequence[str]
    ) -> CommandLine:
        """Join by our own program: it drops its rights before it runs anything of the container."""
        arguments = [
            state.inside or state.pid,
            container.cwd or "/",
            container.inner_uid,
            container.inner_gid,
            int(container.tty),
        ]
        program = [sys.executable, "-I", "-S", join.__file__, place(0), place(1)]
        entries = b"".join(
            f"{name}={value}".encode(errors="surrogateescape") + b"\0"
            for name, value in container.env.items()
        )
        return CommandLine(
            argv=[*program, *map(str, arguments), *argv],
            env=_OUTSIDE,
            descriptors=[("data", entries), ("data", _FILTER)],
        )

    async def destroy(self, container: Confined, state: StartRecord) -> None:
        shims.kill(state)


class Bare:
    kind, sandboxed, maps_images, tells_inside, own_user = "none", False, True, False, False

    def command(self, container: Confined) -> CommandLine:
        opened: list[Descriptor] = []
        command = [*container.enter, *_bare_prefix(container, opened), *container.argv]
        return CommandLine(argv=with_program_path(command), env=container.env, descriptors=opened)

    def join_command(
        self, container: Confined, state: StartRecord, argv: Sequence[str]
    ) -> CommandLine:
        command = [*container.enter]
        if os.geteuid() == 0:
            command += [
                "nsenter",
                f"--target={state.pid}",
                "--mount",
                f"--wdns={container.cwd or '/'}",
            ]
        command += _as_user(container.uid) if container.uid is not None else []
        command += ["setsid", "--ctty", "--wait"] if container.tty else []
        return CommandLine(argv=with_program_path([*command, *argv]), env=container.env)

    async def destroy(self, container: Confined, state: StartRecord) -> None:
        shims.kill(state)


class Podman:
    """The image itself, in Podman; GPUs by their CDI names."""

    kind, sandboxed, maps_images, tells_inside, own_user = "podman", True, False, False, False

    def __init__(self, path: str) -> None:
        self._path = path

    def command(self, container: Confined) -> CommandLine:
        command = [self._path, "run", "--rm", "--pull=never", f"--name={container.name}"]
        command += ["--cgroups=disabled", "--log-driver=none"]  # the shim has both
        if container.enter:
            command.append(f"--network=ns:{container.enter[-1].partition('=')[2]}")
        else:
            command.append("--network=host")
        command += ["--interactive"] * container.stdin + ["--tty"] * container.tty
        command += ["--read-only"] * container.read_only_root
        command += _variables(container.env)
        command += [f"--device=nvidia.com/gpu={device}" for device in container.devices]
        if container.hostname and container.enter:
            command.append(f"--hostname={container.hostname}")
        if container.cwd:
            command.append(f"--workdir={container.cwd}")
        for mount in container.mounts:
            if mount.inside:
                raise ConfigError(
                    f"{mount.inside!r} in {mount.source}: Podman opens volumes by their path, which"
                    " the pod may change meanwhile; mount the whole volume (of a hostPath, list"
                    " that very path under hostPaths), or use another runtime"
                )
            command.append(f"--volume={mount.source}:{mount.target}{':ro' * mount.read_only}")
        env = {**os.environ, **_without_engine_variables(container.env)}
        if container.argv and container.replaces_entrypoint:
            command.append(f"--entrypoint={msgspec.json.encode(container.argv).decode()}")
            return CommandLine(argv=[*command, container.image], env=env)
        return CommandLine(argv=[*command, container.image, *container.argv], env=env)

    def join_command(
        self, container: Confined, state: StartRecord, argv: Sequence[str]
    ) -> CommandLine:
        command = [
            self._path,
            "exec",
            *["--interactive"] * container.stdin,
            *["--tty", "--env=TERM=xterm"] * container.tty,
            container.name,
            *argv,
        ]
        return CommandLine(argv=command, env=dict(os.environ))

    async def destroy(self, container: Confined, state: StartRecord) -> None:
        process = await asyncio.create_subprocess_exec(
            self._path,
            "rm",
            "--force",
            "--time=0",
            container.name,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await process.wait()
        shims.kill(state)


# Variables that the engine itself, or the dynamic loader, would interpret.
_MEANT_FOR_US = re.compile(
    r"(LD_|GLIBC_|GCONV_|GO|CONTAINER|REGISTRY_|STORAGE_|PODMAN_|DOCKER_|XDG_|SSL_|_CONTAINERS_).*"
    r"|PATH|HOME|TMPDIR|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|(?i:https?|no)_proxy"
)


def _without_engine_variables(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not _MEANT_FOR_US.fullmatch(name)}


def _variables(env: Mapping[str, str]) -> list[str]:
    """Pass variables by name, to keep secrets out of the arguments; engine variables by value."""
    harmless = _without_engine_variables(env)
    return [f"--env={name}" if name in harmless else f"--env={name}={env[name]}" for name in env]


def _settings(env: Mapping[str, str]) -> bytes:
    """The container's environment, as arguments that bubblewrap reads from a descriptor."""
    arguments = ["--clearenv"]
    for name, value in env.items():
        arguments += ["--setenv", name, value]
    return b"".join(word.encode(errors="surrogateescape") + b"\0" for word in arguments)


def _as_user(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def _bwrap_arguments(container: Confined, opened: list[Descriptor]) -> Iterator[str]:
    """Yield bubblewrap's arguments; append the files it needs open to `opened`."""

    def open_inside(mount: Mount) -> str:
        opened.append(("path", mount.source, mount.inside))
        return place(len(opened) - 1)

    yield from ("--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc")
    yield from ("--uid", str(container.inner_uid), "--gid", str(container.inner_gid))
    if container.hostname:
        yield from ("--unshare-uts", "--hostname", container.hostname)
    yield from filesystem.mount_arguments(
        container.mounts,
        open_inside,
        root=container.root,
        paths=container.paths,
        gpus=bool(container.devices),
        own_network=bool(container.enter),
    )
    if container.read_only_root:
        yield from ("--remount-ro", "/")
    yield from ("--chdir", container.cwd or "/")
    yield from ("--info-fd", str(INFO_DESCRIPTOR))
    if _FILTER:
        opened.append(("data", _FILTER))
        yield from ("--seccomp", place(len(opened) - 1))


def _bare_prefix(container: Confined, opened: list[Descriptor]) -> list[str]:
    prefix: list[str] = []
    if container.mounts:
        if os.geteuid() != 0:
            raise ConfigError(
                f"a volume cannot be mounted at {container.mounts[0].target}: this node has no"
                " bubblewrap and does not run as root"
            )
        script = "set -e; "
        numbers: list[str] = []
        for mount in container.mounts:
            source = _quoted(mount.source)
            if mount.inside:
                opened.append(("path", mount.source, mount.inside))
                numbers.append(place(len(opened) - 1))
                # Not made canonical: we mount the opened file, whatever its name is now.
                source = f'"/proc/self/fd/${len(numbers)}"'
            script += _mount(mount, source)
        prefix += ["unshare", "--mount", "--propagation", "private"]
        prefix += ["sh", "-c", f'{script}shift {len(numbers)}; exec "$@"', "sh", *numbers]
    if container.uid is not None:
        prefix += _as_user(container.uid)
    if container.cwd:
        prefix += ["env", f"--chdir={container.cwd}"]
    return prefix


def _mount(mount: Mount, source: str) -> str:
    target = _quoted(mount.target)
    # The empty mount point may stay behind; only the pod sees what is mounted on it.
    folder = f"[ -d {target} ] || mkdir -p {target}"
    file = f'[ -e {target} ] || {{ mkdir -p "$(dirname {target})"; : > {target}; }}'
    make_target = f"if [ -d {source} ]; then {folder}; else {file}; fi; "
    only = f"mount -o remount,bind,ro {target}; " if mount.read_only else ""
    return f"{make_target}mount --no-canonicalize --bind {source} {target}; {only}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
