"""The last use of each plane: a plane without requests for a while may sleep."""

from __future__ import annotations

from urllib.parse import unquote

from bidplane.machinery.clock import Clock


class UseTracker:
    """Counts requests from outside. Reads by controllers in this process do not count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now: dict[str, int] = {}  # requests, watches among them, being served
        self._last: dict[str, float] = {}

    def begin(self, path: str) -> str:
        """Count a request to `/planes/NAME/…` as being served; return the name for `end`."""
        parts = path.split("/", 3)
        name = unquote(parts[2]) if len(parts) > 2 and parts[1] == "planes" else ""
        self._now[name] = self._now.get(name, 0) + 1
        return name

    def end(self, name: str) -> None:
        if name in self._last:  # anybody can request a plane that does not exist
            self.touch(name)
        self._now[name] -= 1
        if not self._now[name]:
            del self._now[name]

    def touch(self, name: str) -> None:
        self._last[name] = self._clock.now()

    def forget(self, name: str) -> None:
        self._last.pop(name, None)

    def unused_for(self, name: str) -> float:
        """Seconds since the last request ended; 0 while one is being served."""
        if self._now.get(name):
            return 0.0
        return self._clock.now() - self._last.setdefault(name, self._clock.now())
