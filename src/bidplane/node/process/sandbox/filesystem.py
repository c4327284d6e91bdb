"""
The container's view of the file system, as arguments for bubblewrap.

It has the machine's programs and libraries, or an image's root, read-only; a few private folders;
and its volumes. A volume may be mounted anywhere. If its mount point is missing in a read-only
folder, that folder is mounted entry by entry, so that the mount point can be added.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# The entries of /etc that programs need to find libraries, names and certificates.
_SETTINGS = (
    "alternatives",
    "ca-certificates",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki",
    "protocols",
    "resolv.conf",
    "services",
    "ssl",
    "OpenCL",
    "vulkan",
)
_GPU_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/*")
_RESOLVED = Path("/run/systemd/resolve/resolv.conf")
_OWN = ("/proc", "/dev", "/tmp", "/run")  # never an image's
_MOST_LINKS = 40  # as the kernel follows


class Mount(msgspec.Struct, frozen=True):
    source: str
    target: str
    read_only: bool = False
    inside: str = ""  # a path in `source`, which its pods may change


def mount_arguments(
    mounts: Sequence[Mount],
    opened: Callable[[Mount], str],
    *,
    root: str = "",
    paths: Sequence[str] = (),
    gpus: bool = False,
    own_network: bool = False,
) -> Iterator[str]:
    """
    Yield bubblewrap's arguments in mount order. `opened` returns the descriptor of a path inside
    a volume, as an argument.
    """
    at = [resolve_links(mount.target, root) for mount in mounts]
    if root:
        for entry in sorted(Path(root).iterdir()):
            if f"/{entry.name}" not in _OWN:
                yield from _entry(entry, f"/{entry.name}", at)
    else:
        for folder in _SYSTEM:
            if os.path.lexists(folder):
                yield from _entry(Path(folder), folder, at)
        for name in _SETTINGS:
            if Path("/etc", name).exists():
                yield from ("--ro-bind", _setting(name, own_network=own_network), f"/etc/{name}")
    for path in paths:
        yield from ("--ro-bind", path, path)
    yield from ("--tmpfs", "/tmp", "--tmpfs", "/run")
    if not root:
        yield from ("--dir", "/var/tmp", "--symlink", "/run", "/var/run")
    yield from ("--proc", "/proc", "--dev", "/dev")
    for pattern in _GPU_NODES if gpus else ():
        for node in sorted(Path("/").glob(pattern.lstrip("/"))):
            if not node.is_dir():
                yield from ("--dev-bind", str(node), str(node))
    for mount, target in zip(mounts, at, strict=True):
        kind = "--ro-bind" if mount.read_only else "--bind"
        if mount.inside:
            yield from (f"{kind}-fd", opened(mount), target)
        else:
            yield from (kind, mount.source, target)


def _setting(name: str, *, own_network: bool) -> str:
    """Return the file of a setting; for a resolver on the host's loopback, its upstream's."""
    path = Path("/etc", name)
    if own_network and name == "resolv.conf" and _RESOLVED.exists():
        servers = [line.split() for line in path.read_text().splitlines()]
        if any(line[:1] == ["nameserver"] and line[1].startswith("127.") for line in servers):
            return str(_RESOLVED)
    return str(path)


def _entry(entry: Path, target: str, mounted: Sequence[str]) -> Iterator[str]:
    if entry.is_symlink():
        yield from ("--symlink", os.readlink(entry), target)
        return
    below = [path for path in mounted if path.startswith(f"{target}/")]
    missing = [path for path in below if not os.path.lexists(entry / path[len(target) + 1 :])]
    if not missing or not entry.is_dir():
        yield from ("--ro-bind", str(entry), target)
        return
    yield from ("--dir", target)
    for child in sorted(entry.iterdir()):
        yield from _entry(child, f"{target}/{child.name}", missing)


def resolve_links(path: str, root: str) -> str:
    """Return a path of the container with its links resolved inside the container."""
    parts, done, links = path.split("/"), "", 0
    while parts:
        part = parts.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = os.path.dirname(done)
            continue
        current = f"{done.rstrip('/')}/{part}"
        link = _link(current, root)
        links += link is not None
        if link is None or links > _MOST_LINKS:
            done = current
            continue
        parts = [*link.split("/"), *parts]
        done = "" if link.startswith("/") else done
    return done or "/"


def _link(path: str, root: str) -> str | None:
    if not root and path == "/var/run":
        return "/run"
    if path in _OWN or not (root or path in _SYSTEM):
        return None
    try:
        return os.readlink(root + path)
    except OSError:
        return None
