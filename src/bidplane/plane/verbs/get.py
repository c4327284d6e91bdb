"""GET of one object."""

from __future__ import annotations

from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Item
from bidplane.wire import status


def get(plane: Plane, call: Call) -> Item:
    item = plane.store.get(call.key)
    if item is None:
        raise status.not_found(call.about)
    return item
