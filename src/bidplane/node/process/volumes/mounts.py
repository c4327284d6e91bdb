"""
Volumes as directories.

    hostPaths: [/data]                      # what hostPath volumes may name, and below
    shared:                                 # claims any pod may name
      models: {path: /mnt/models, readOnly: true}
    claims:                                 # claims of one namespace
      team/scratch: {path: /srv/scratch}
    claimsFolder: /srv/claims               # any other claim gets a directory here

Files made from objects are written to a new folder and swapped in atomically, through the
symlink `..data`, as the kubelet does.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bidplane.core.pods.environment import ConfigError
from bidplane.core.pods.files import File
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.process.container.images import read
from bidplane.node.process.sandbox.filesystem import Mount, resolve_links
from bidplane.node.process.volumes import paths, tmpfs
from bidplane.wire.names import subdomain_problems
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

    def place(self, path: str) -> tuple[str, str] | None:
        """
        Return the folder that the owner allows and the path inside it, links followed; None when
        a pod may not see that path of the machine.
        """
        real = os.path.realpath(path)
        for allowed in map(os.path.realpath, self.host_paths):
            if real == allowed or real.startswith(allowed.rstrip("/") + "/"):
                return allowed, os.path.relpath(real, allowed) if real != allowed else ""
        return None

    def named(self, namespace: str, name: str) -> Shared | None:
        return self.claims.get(f"{namespace}/{name}") or self.shared.get(name)

    def claim(self, namespace: str, name: str, uid: str = "") -> Shared | None:
        """
        Return the directory of a claim, made if need be; None if this node has none for it.

        The `uid` is in the directory's name, so that an agent that reuses the name of an earlier
        one does not get its directories.
        """
        declared = self.named(namespace, name)
        if declared is None and self.claims_folder:
            for role, text in (("namespace", namespace), ("claim", name)):
                if subdomain_problems(text):
                    raise ConfigError(f"{text!r} is not a name that a {role} may have")
            by_name = Path(self.claims_folder, namespace, name)
            path = by_name.with_name(f"{name}@{uid}") if uid else by_name
            path.parent.mkdir(parents=True, exist_ok=True)
            if uid and not path.exists() and by_name.is_dir() and not by_name.is_symlink():
                by_name.rename(path)  # made by a release without uids
            with suppress(FileExistsError):
                path.mkdir()
                path.chmod(0o777)  # whoever its pods run as; what was there stays as it was
            return Shared(path=str(path))
        return declared


def load(path: Path) -> Declared:
    declared: Declared = read(path, Declared, "volumes")
    folders = [claim.path for claim in (*declared.shared.values(), *declared.claims.values())]
    for folder in [*declared.host_paths, *folders, declared.claims_folder]:
        if folder and not Path(folder).is_absolute():
            raise UserError(f"the volumes file {path}: {folder!r} must be an absolute path")
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"the volumes file {path}: there is no directory {folder}")
    return declared


class VolumeSource(msgspec.Struct, frozen=True):
    """The location of a volume on this machine."""

    path: Path
    read_only: bool = False
    inside: str = ""  # a path in it that its pods may change: opened beneath `path`


def write_files(folder: Path, contents: Mapping[str, File], owner: int | None) -> bool:
    """Set the folder's files atomically; return True if anything changed."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / _LINK
    if link.is_symlink() and _read(link.resolve()) == dict(contents):
        return False
    new_folder = folder / f"..{uuid.uuid4().hex[:12]}"
    new_folder.mkdir(mode=0o755)
    for path, file in contents.items():
        target = new_folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    if owner is not None:
        give(new_folder, owner)
    old = link.resolve() if link.is_symlink() else None
    swap = folder / f"..new-{uuid.uuid4().hex[:12]}"
    swap.symlink_to(new_folder.name)
    swap.rename(link)
    tops = {path.split("/")[0] for path in contents}
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
    contents = {}
    for path in folder.rglob("*"):
        if path.is_file():
            mode = path.stat().st_mode & 0o7777
            contents[str(path.relative_to(folder))] = File(path.read_bytes(), mode)
    return contents


def give(folder: Path, owner: int) -> None:
    """Give a folder to the pod's user; the folder last, so that nobody changes it meanwhile."""
    for path in sorted(folder.rglob("*"), reverse=True):
        os.chown(path, owner, owner, follow_symlinks=False)
    os.chown(folder, owner, owner)


def empty_dir(folder: Path, spec: Object, owner: int | None) -> VolumeSource:
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        if owner is not None:
            os.chown(folder, owner, owner)
    if spec.get("medium") == "Memory" and tmpfs.is_permitted():
        limit = spec.get("sizeLimit")
        tmpfs.mount(folder, size=int(parse_quantity(limit)) if limit else None, owner=owner)
    return VolumeSource(folder)


def host_path(volume: Object, declared: Declared) -> VolumeSource:
    path, kind = volume["hostPath"]["path"], volume["hostPath"].get("type") or ""
    place = declared.place(path)
    if place is None:
        raise ConfigError(
            f"hostPath {path} is not allowed on this node: its owner lists what is,"
            " as hostPaths in the file given with --volumes"
        )
    root, inside = place
    target = Path(root, inside)
    try:
        if kind == "DirectoryOrCreate" and inside:
            paths.make_beneath(root, inside)
        if kind == "FileOrCreate" and inside and not target.exists():
            paths.touch_beneath(root, inside)
    except OSError as error:
        raise ConfigError(f"hostPath {path}: {error.strerror}") from error
    wrong = {
        "Directory": not target.is_dir(),
        "DirectoryOrCreate": not target.is_dir(),
        "File": not target.is_file(),
        "FileOrCreate": not target.is_file(),
        "Socket": not target.is_socket(),
        "CharDevice": not target.is_char_device(),
        "BlockDevice": not target.is_block_device(),
    }.get(kind, not target.exists())
    if wrong:
        raise ConfigError(
            f"hostPath type check failed: {path} is not a {kind or 'path that exists'}"
        )
    # A pod that can write there could replace the path by a link. So it is opened beneath the
    # allowed folder when it is mounted.
    return VolumeSource(Path(root), inside=inside)


def container_mounts(
    container: Object, sources: Mapping[str, VolumeSource], expand: Mapping[str, str]
) -> list[Mount]:
    from bidplane.core.pods.environment import expand as expanded

    mounts = []
    for wish in container.get("volumeMounts") or ():
        source = sources[wish["name"]]
        inside = wish.get("subPath") or expanded(wish.get("subPathExpr") or "", expand)
        if inside:
            prefix = f"{source.inside}/" if source.inside else ""
            _prepare(source.path, f"{prefix}{inside}", wish["name"])
        if source.inside:
            inside = f"{source.inside}/{inside}" if inside else source.inside
        read_only = bool(wish.get("readOnly")) or source.read_only
        mounts.append(Mount(str(source.path), wish["mountPath"], read_only, inside))
    return mounts


def check_mount_points(mounts: Sequence[Mount], *, root: str) -> None:
    """
    Raise `ConfigError` for a mount point below another volume that a link leads out of it.

    Bubblewrap makes missing mount points while it still sees the machine's files, so such a link
    would make it write there.
    """
    targets = [resolve_links(mount.target, root) for mount in mounts]
    for index, target in enumerate(targets):
        outer = _nearest(targets[:index], target)
        if outer is None:
            continue
        volume = mounts[outer]
        parts = [volume.inside] if volume.inside else []
        for part in target[len(targets[outer]) :].strip("/").split("/"):
            parts.append(part)
            try:
                os.close(paths.open_beneath(volume.source, "/".join(parts)))
            except (FileNotFoundError, NotADirectoryError):
                break  # it is made in the volume, or refused by the kernel
            except OSError as error:
                raise ConfigError(
                    f"the mount path {mounts[index].target} leads out of the volume at"
                    f" {volume.target}: it goes through a link there. Remove the link, or mount the"
                    " volume somewhere else"
                ) from error


def _nearest(targets: Sequence[str], path: str) -> int | None:
    """Return the index of the innermost of the targets that `path` lies below; None if none."""
    above = [
        (len(target), index)
        for index, target in enumerate(targets)
        if path.startswith(f"{target.rstrip('/')}/")
    ]
    return max(above)[1] if above else None


def _prepare(volume: Path, inside: str, name: str) -> None:
    """Make the folders of a subPath; raises `ConfigError` if it leads out of the volume."""
    try:
        paths.make_beneath(str(volume), inside)
    except OSError as error:
        raise ConfigError(f"subPath {inside!r} of volume {name}: {error.strerror}") from error
