"""An index over an informer's cache, by another key than the name."""

from __future__ import annotations

from collections.abc import Callable

from bidplane.kube.client import EventType, Object
from bidplane.machinery.informer import Informer, Key, key_of


class Index:
    """
    The objects of an informer by the key that `key_function` returns; those with key "" are left
    out.
    """

    def __init__(self, informer: Informer, key_function: Callable[[Object], str]) -> None:
        self._key_function = key_function
        self._by_value: dict[str, dict[Key, Object]] = {}
        self._values: dict[Key, str] = {}
        informer.on_change(self._changed)

    def __getitem__(self, value: str) -> list[Object]:
        """The objects with this key."""
        return list(self._by_value.get(value, {}).values())

    def _changed(self, event: EventType, obj: Object) -> None:
        key = key_of(obj)
        old, new = self._values.get(key, ""), "" if event == "DELETED" else self._key_function(obj)
        if old and old != new:
            del self._by_value[old][key]
            del self._values[key]
            if not self._by_value[old]:
                del self._by_value[old]
        if new:
            self._by_value.setdefault(new, {})[key] = obj
            self._values[key] = new
