"""What a cache holds, found by something else than its name."""

from __future__ import annotations

from collections.abc import Callable

from bidplane.kube.client import EventType, Object
from bidplane.machinery.informer import Informer, Key, key_of


class Index:
    """The objects of an informer by what `of` says of them; those of which it says "" are not."""

    def __init__(self, informer: Informer, of: Callable[[Object], str]) -> None:
        self._of = of
        self._found: dict[str, dict[Key, Object]] = {}
        self._filed: dict[Key, str] = {}
        informer.on_change(self._changed)

    def __getitem__(self, value: str) -> list[Object]:
        return list(self._found.get(value, {}).values())

    def _changed(self, event: EventType, obj: Object) -> None:
        key = key_of(obj)
        before, now = self._filed.get(key, ""), "" if event == "DELETED" else self._of(obj)
        if before and before != now:
            del self._found[before][key]
            del self._filed[key]
            if not self._found[before]:
                del self._found[before]
        if now:
            self._found.setdefault(now, {})[key] = obj
            self._filed[key] = now
