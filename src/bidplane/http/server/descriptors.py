"""Limits of the operating system on this process."""

from __future__ import annotations

import resource
from contextlib import suppress


def open_files() -> int:
    """Raise the limit on open files as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems name a limit they do not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft
