"""A lock on a folder, for as long as the process that holds it lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class HeldByAnother(Exception):
    """Another process has the lock; the text names it."""


def is_held(folder: Path) -> bool:
    """Return whether some process holds the folder now."""
    try:
        with (folder / "lock").open("r") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def hold(folder: Path) -> IO[str]:
    """
    Return the lock, held until it is closed or this process ends; raise `OSError` if that fails.
    """
    handle = (folder / "lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.seek(0)
        holder = handle.read().strip() or "another process"
        handle.close()
        raise HeldByAnother(holder) from None
    handle.truncate(0)
    handle.write(f"process {os.getpid()}")
    handle.flush()
    return handle
