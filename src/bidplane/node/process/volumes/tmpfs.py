"""A file system in memory, for `emptyDir: {medium: Memory}`. It needs root."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_MNT_DETACH, _NOSUID_NODEV = 2, 2 | 4


def is_permitted() -> bool:
    return os.geteuid() == 0


def mount(folder: Path, *, size: int | None, owner: int | None) -> None:
    """Mount a tmpfs on an empty folder; safe to repeat. Raises `OSError`."""
    if os.path.ismount(folder):
        return
    options = ["mode=0777"]
    options += [f"size={size}"] if size else []
    options += [f"uid={owner}", f"gid={owner}"] if owner is not None else []
    libc = ctypes.CDLL(None, use_errno=True)
    mount_data = ",".join(options).encode()
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _NOSUID_NODEV, mount_data):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount a tmpfs: {os.strerror(number)}", str(folder))


def unmount(folder: Path) -> None:
    """Unmount the tmpfs on a folder, if there is one; its files are lost."""
    if is_permitted() and os.path.ismount(folder):
        ctypes.CDLL(None).umount2(os.fsencode(folder), _MNT_DETACH)
