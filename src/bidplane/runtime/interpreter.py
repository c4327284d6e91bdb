"""Interpreter settings of our long-lived processes."""

from __future__ import annotations

import gc
import sys

from bidplane.storage import sqlite

# The objects of a plane live long and are in no cycle. A collection after every 700 new objects,
# as by default, would traverse them for nothing, many times a second.
_COLLECT_AFTER = (50_000, 20, 50)
# A commit's thread needs the interpreter for microseconds between two waits for the disk. By
# default a busy event loop makes it wait 5 ms for each.
_SWITCH_SECONDS = 0.0005


def tune() -> None:
    """Set garbage collection, thread switching and SQLite for a long-lived process."""
    collect_rarely()
    sys.setswitchinterval(_SWITCH_SECONDS)
    sqlite.limit_connection_memory()


def collect_rarely() -> None:
    """Collect garbage as rarely as in a long-lived process."""
    gc.set_threshold(*_COLLECT_AFTER)
