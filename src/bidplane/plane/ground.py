"""
What every plane begins with and no plane pays for: default roles, and our own CRDs.

Held once for all planes of a process. They are not rows in a plane's file: the store lays
them under what it has read. One that is changed becomes a row; one that is deleted is gone
until the plane is opened after a compaction, as a real server makes its default roles anew
when it starts. They come with the release, so a plane that is opened by a newer one has
the newer ones.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.plane.feed import Item, Key
from bidplane.plane.registry import CRDS
from bidplane.wire import crds, rbac

# One time for all: they come with the release, not with a plane.
_SINCE = "2026-01-01T00:00:00Z"
_SPACE = uuid.UUID("6f2a1c1e-6d0b-4a55-9d4b-0f3a5b1f7c11")

# By identity: the same few CRDs are given for every plane, and kept here so that it stays theirs.
_laid: dict[int, tuple[Mapping[str, Any], Item]] = {}


@functools.cache
def roles() -> tuple[Item, ...]:
    return tuple(
        _item(Key(storage, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]), obj)
        for storage, objects in rbac.defaults().items()
        for obj in objects
    )


def definitions(given: Sequence[Mapping[str, Any]]) -> list[Item]:
    """The CRDs as a plane would show them, had they been created in it and accepted."""
    return [_definition(crd) for crd in given]


def _definition(crd: Mapping[str, Any]) -> Item:
    held = _laid.get(id(crd))
    if held is None:
        obj = msgspec.json.decode(msgspec.json.encode(crd))
        crds.default(obj)
        obj["metadata"]["generation"] = 1
        obj["status"] = crds.established(obj, _SINCE)
        held = _laid[id(crd)] = crd, _item(Key(CRDS, "", obj["metadata"]["name"]), obj)
    return held[1]


def _item(key: Key, obj: Mapping[str, Any]) -> Item:
    metadata = {
        **obj["metadata"],
        "uid": str(uuid.uuid5(_SPACE, str(key))),
        "resourceVersion": "1",
        "creationTimestamp": _SINCE,
    }
    whole = {**obj, "metadata": metadata}
    return Item(key, whole, msgspec.json.encode(whole), 0, 1)
