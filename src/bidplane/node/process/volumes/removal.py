"""
Removes a folder that a tenant has filled, whatever its depth.

`shutil.rmtree` recurses, and opens a file for each level: a tenant can make more levels than the
interpreter recurses or a process may open. Here each folder that is not empty is first moved to the
top. So no path is long, and two folders are open at a time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a folder and all that is in it. What cannot be removed is left, without an error."""
    try:
        top = _open(os.fspath(path))
    except OSError:
        return
    try:
        names = (f"..removed-{number}" for number in itertools.count())
        pending = _clear(top, top, names)
        while pending:
            name = pending.pop()
            with suppress(OSError):
                folder = _open(name, top)
                try:
                    pending += _clear(folder, top, names)
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with suppress(OSError):
        path.rmdir()


def _clear(folder: int, top: int, names: Iterator[str]) -> list[str]:
    """Remove the files of a folder, and move its folders to `top`; return their names there."""
    moved = []
    for entry in os.listdir(folder):
        try:
            os.unlink(entry, dir_fd=folder)
        except OSError:  # a folder
            with suppress(OSError):
                moved.append(_move(folder, entry, top, names))
    return moved


def _move(folder: int, entry: str, top: int, names: Iterator[str]) -> str:
    if folder == top:
        return entry
    name = next(names)
    try:
        os.rename(entry, name, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:
        os.close(_open(entry, folder))  # to move a folder, one must be able to write to it
        os.rename(entry, name, src_dir_fd=folder, dst_dir_fd=top)
    return name


def _open(path: str, folder: int | None = None) -> int:
    """Open a folder for reading; its owner may have closed it to everybody."""
    place = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        with suppress(OSError):
            os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", _FOLDER, dir_fd=place)
    finally:
        os.close(place)
