"""A folder that one process has to itself, for as long as it lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class HeldByAnother(Exception):
    """Its text says by whom."""


def hold(folder: Path) -> IO[str]:
    """The lock, held until it is closed or this process ends; `OSError` if it cannot be made."""
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
