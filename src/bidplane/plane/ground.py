"""
The roles every plane begins with, held once for all planes of a process.

They are not rows in a plane's file: the store lays them under what it has read. One that is
changed becomes a row; one that is deleted is gone until the plane is opened after a compaction,
as a real server makes its default roles anew when it starts.
"""

from __future__ import annotations

import functools
import uuid

import msgspec

from bidplane.plane.feed import Item, Key
from bidplane.wire import rbac

# One time for all: they come with the release, not with a plane.
_SINCE = "2026-01-01T00:00:00Z"
_SPACE = uuid.UUID("6f2a1c1e-6d0b-4a55-9d4b-0f3a5b1f7c11")


@functools.cache
def items() -> tuple[Item, ...]:
    found = []
    for storage, objects in rbac.defaults().items():
        for obj in objects:
            meta = obj["metadata"]
            key = Key(storage, meta.get("namespace", ""), meta["name"])
            whole = {
                **obj,
                "metadata": {
                    **meta,
                    "uid": str(uuid.uuid5(_SPACE, str(key))),
                    "resourceVersion": "1",
                    "creationTimestamp": _SINCE,
                },
            }
            found.append(Item(key, whole, msgspec.json.encode(whole), 0, 1))
    return tuple(found)
