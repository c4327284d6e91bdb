"""A file system in memory, for `emptyDir: {medium: Memory}`. It takes root."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_MNT_DETACH, _NOSUID_NODEV = 2, 2 | 4


def possible() -> bool:
    return os.geteuid() == 0


def mount(folder: Path, *, size: int | None, owner: int | None) -> None:
    """On an empty folder; safe to repeat. Raises `OSError` where it may not be done."""
    if os.path.ismount(folder):
        return
    options = ["mode=0777"]
    options += [f"size={size}"] if size else []
    options += [f"uid={owner}", f"gid={owner}"] if owner is not None else []
    libc = ctypes.CDLL(None, use_errno=True)
    words = ",".join(options).encode()
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _NOSUID_NODEV, words):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount a tmpfs: {os.strerror(number)}", str(folder))


def unmount(folder: Path) -> None:
    """If one is there: what is in it goes."""
    if possible() and os.path.ismount(folder):
        ctypes.CDLL(None).umount2(os.fsencode(folder), _MNT_DETACH)
