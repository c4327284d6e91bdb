"""Giving memory back to the system, where the C library can."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def give_back() -> None:
    """
    Collect garbage, and return free pages to the system.

    glibc keeps free memory in the middle of its heap unless it is trimmed: without this, planes
    that sleep would cost as much as planes that do not. Other libraries lack it.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
