"""What the system lets this process have."""

from __future__ import annotations

import resource
from contextlib import suppress


def open_files() -> int:
    """How many files may be open at once, after asking for as many as there are to be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems name a limit they do not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft
