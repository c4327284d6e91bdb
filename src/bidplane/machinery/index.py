"""An index over a typed cache, by another key than the name; `TypedCache.index` makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from bidplane.machinery.informer import Key

T = TypeVar("T")


class Index(Generic[T]):
    """The objects of a cache by the value of `key_function`; those with value "" are left out."""

    def __init__(self, key_function: Callable[[T], str]) -> None:
        self._key_function = key_function
        self._by_value: dict[str, dict[Key, T]] = {}
        self._values: dict[Key, str] = {}

    def __getitem__(self, value: str) -> list[T]:
        """The objects with this value."""
        return list(self._by_value.get(value, {}).values())

    def update(self, key: Key, obj: T | None) -> None:
        """Store the object with that namespace and name; None removes it."""
        old, new = self._values.get(key, ""), "" if obj is None else self._key_function(obj)
        if old and old != new:
            del self._by_value[old][key]
            del self._values[key]
            if not self._by_value[old]:
                del self._by_value[old]
        if new and obj is not None:
            self._by_value.setdefault(new, {})[key] = obj
            self._values[key] = new
