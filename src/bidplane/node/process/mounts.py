"""
Volumes as directories.

    hostPaths: [/data]                      # what hostPath volumes may name, and below
    shared:                                 # claims any pod may name
      models: {path: /mnt/models, readOnly: true}
    claims:                                 # claims of one namespace
      team/scratch: {path: /srv/scratch}
    claimsFolder: /srv/claims               # any other claim gets a directory here

What is made from objects is written beside the old and swapped in one step, through the
symlink `..data`, as the kubelet does.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bidplane.core.pods.environment import ConfigError
from bidplane.core.pods.files import File
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.process import tmpfs
from bidplane.node.process.images import read
from bidplane.node.process.view import Mount
from bidplane.wire.quantity import parse as parse_quantity

_LINK = "..data"


class Shared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    path: str
    read_only: bool = False


class Declared(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    host_paths: list[str] = []
    shared: dict[str, Shared] = {}
    claims: dict[str, Shared] = {}
    claims_folder: str = ""

    def allows(self, path: str) -> bool:
        """Whether a pod may see that path of the machine, links followed."""
        real = os.path.realpath(path)
        return any(
            real == allowed or real.startswith(allowed.rstrip("/") + "/")
            for allowed in map(os.path.realpath, self.host_paths)
        )

    def named(self, namespace: str, name: str) -> Shared | None:
        return self.claims.get(f"{namespace}/{name}") or self.shared.get(name)

    def claim(self, namespace: str, name: str) -> Shared | None:
        found = self.named(namespace, name)
        if found is None and self.claims_folder:
            path = Path(self.claims_folder, namespace, name)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
            return Shared(path=str(path))
        return found


def load(path: Path) -> Declared:
    declared: Declared = read(path, Declared, "volumes")
    folders = [one.path for one in (*declared.shared.values(), *declared.claims.values())]
    for folder in [*declared.host_paths, *folders, declared.claims_folder]:
        if folder and not Path(folder).is_absolute():
            raise UserError(f"the volumes file {path}: {folder!r} must be an absolute path")
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"the volumes file {path}: there is no directory {folder}")
    return declared


class Source(msgspec.Struct, frozen=True):
    """Where a volume is on this machine."""

    path: Path
    read_only: bool = False


def write_files(folder: Path, wanted: Mapping[str, File], owner: int | None) -> bool:
    """Make the folder hold exactly that; True if anything changed. Readers never see half."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / _LINK
    if link.is_symlink() and _read(link.resolve()) == dict(wanted):
        return False
    fresh = folder / f"..{uuid.uuid4().hex[:12]}"
    fresh.mkdir(mode=0o755)
    for path, file in wanted.items():
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    if owner is not None:
        give(fresh, owner)
    old = link.resolve() if link.is_symlink() else None
    swap = folder / f"..new-{uuid.uuid4().hex[:12]}"
    swap.symlink_to(fresh.name)
    swap.rename(link)
    tops = {path.split("/")[0] for path in wanted}
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"{_LINK}/{top}")
    for stale in folder.iterdir():
        if stale.is_symlink() and stale.name not in tops and stale.name != _LINK:
            stale.unlink()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _read(folder: Path) -> dict[str, File]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            mode = path.stat().st_mode & 0o7777
            found[str(path.relative_to(folder))] = File(path.read_bytes(), mode)
    return found


def give(folder: Path, owner: int) -> None:
    """All of a folder to the pod's user."""
    os.chown(folder, owner, owner)
    for path in folder.rglob("*"):
        os.chown(path, owner, owner, follow_symlinks=False)


def empty_dir(folder: Path, spec: Object, owner: int | None) -> Source:
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        if owner is not None:
            os.chown(folder, owner, owner)
    if spec.get("medium") == "Memory" and tmpfs.possible():
        limit = spec.get("sizeLimit")
        tmpfs.mount(folder, size=int(parse_quantity(limit)) if limit else None, owner=owner)
    return Source(folder)


def host_path(volume: Object, declared: Declared) -> Source:
    path, kind = volume["hostPath"]["path"], volume["hostPath"].get("type") or ""
    if not declared.allows(path):
        raise ConfigError(
            f"hostPath {path} is not allowed on this node: its owner lists what is,"
            " as hostPaths in the file given with --volumes"
        )
    there = Path(path)
    if kind == "DirectoryOrCreate" and not there.exists():
        there.mkdir(parents=True, mode=0o755)
    if kind == "FileOrCreate" and not there.exists():
        there.touch(mode=0o644)
    wrong = {
        "Directory": not there.is_dir(),
        "DirectoryOrCreate": not there.is_dir(),
        "File": not there.is_file(),
        "FileOrCreate": not there.is_file(),
        "Socket": not there.is_socket(),
        "CharDevice": not there.is_char_device(),
        "BlockDevice": not there.is_block_device(),
    }.get(kind, not there.exists())
    if wrong:
        raise ConfigError(
            f"hostPath type check failed: {path} is not a {kind or 'path that is there'}"
        )
    return Source(there)


def container_mounts(
    container: Object, sources: Mapping[str, Source], expand: Mapping[str, str]
) -> list[Mount]:
    from bidplane.core.pods.environment import expand as expanded

    found = []
    for wish in container.get("volumeMounts") or ():
        source = sources[wish["name"]]
        inside = wish.get("subPath") or expanded(wish.get("subPathExpr") or "", expand)
        path = _inside(source.path, inside, wish["name"]) if inside else source.path
        read_only = bool(wish.get("readOnly")) or source.read_only
        found.append(Mount(str(path), wish["mountPath"], read_only))
    return found


def _inside(volume: Path, sub: str, name: str) -> Path:
    """A path inside a volume; a link that leads out of it is no way out."""
    if sub.startswith("/") or ".." in sub.split("/"):
        raise ConfigError(f"subPath {sub!r} of volume {name} must be a path inside it")
    path = volume / sub
    root = os.path.realpath(volume)
    real = os.path.realpath(path)
    if real != root and not real.startswith(root + "/"):
        raise ConfigError(f"subPath {sub!r} of volume {name} leads out of it")
    if not path.exists():
        path.mkdir(parents=True)
        owner = os.stat(volume)
        if os.geteuid() == 0:
            os.chown(path, owner.st_uid, owner.st_gid)
    return Path(real) if path.exists() else path
