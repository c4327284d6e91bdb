"""How a long-lived process of ours wants its interpreter, and what is shared in it."""

from __future__ import annotations

import gc
import sys

from bidplane.storage import sqlite

# What a plane holds lives long and is in no cycle. Looked through after every 700 new objects,
# as by default, it is looked through for nothing, many times a second.
_COLLECT_AFTER = (50_000, 20, 50)
# A commit's thread needs the interpreter for microseconds between two waits for the disk. By
# default a busy event loop makes it wait 5 ms for each.
_SWITCH_SECONDS = 0.0005


def tune() -> None:
    gc.set_threshold(*_COLLECT_AFTER)
    sys.setswitchinterval(_SWITCH_SECONDS)
    sqlite.hold_little()
