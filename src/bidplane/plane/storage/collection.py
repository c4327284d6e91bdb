"""
The objects of one resource, by namespace and name, and in order.

The order is a list that is sorted when it is first asked for and kept sorted from then on: a
page begins at a binary search, and a snapshot of 100,000 objects is one copy of references.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter

from bidplane.plane.storage.feed import Item, Key

_by_key = attrgetter("key")


class Collection:
    __slots__ = ("_order", "bytes", "count", "spaces")

    def __init__(self) -> None:
        self.spaces: dict[str, dict[str, Item]] = {}  # by namespace, then name
        self.count = self.bytes = 0
        self._order: list[Item] | None = None  # None until the first list

    def get(self, namespace: str, name: str) -> Item | None:
        return self.spaces.get(namespace, {}).get(name)

    def put(self, item: Item) -> Item | None:
        """Store `item` and return the one that it replaces."""
        key = item.key
        space = self.spaces.setdefault(key.namespace, {})
        previous = space.get(key.name)
        space[key.name] = item
        self.count += previous is None
        self.bytes += len(item.raw) - (len(previous.raw) if previous is not None else 0)
        if self._order is not None:
            at = bisect_left(self._order, key, key=_by_key)
            if previous is None:
                self._order.insert(at, item)
            else:
                self._order[at] = item
        return previous

    def remove(self, key: Key) -> Item | None:
        space = self.spaces.get(key.namespace, {})
        previous = space.pop(key.name, None)
        if previous is None:
            return None
        if not space:
            del self.spaces[key.namespace]
        self.count -= 1
        self.bytes -= len(previous.raw)
        if self._order is not None:
            del self._order[bisect_left(self._order, key, key=_by_key)]
        return previous

    def range(self, namespace: str, after: Key | None = None) -> tuple[int, int]:
        """Return where the objects of `namespace` ("" for all) begin after `after`, and end."""
        order = self._ordered()
        start, end = 0, len(order)
        if namespace and order:
            resource = order[0].key.resource
            start = bisect_left(order, Key(resource, namespace, ""), key=_by_key)
            # No string comes between a name and the same name with a zero character.
            end = bisect_left(order, Key(resource, namespace + "\0", ""), key=_by_key)
        if after is not None:
            start = max(start, bisect_right(order, after, key=_by_key))
        return start, max(start, end)

    def slice(self, start: int, end: int) -> list[Item]:
        return self._ordered()[start:end]

    def _ordered(self) -> list[Item]:
        if self._order is None:
            items = [item for space in self.spaces.values() for item in space.values()]
            items.sort(key=_by_key)
            self._order = items
        return self._order
