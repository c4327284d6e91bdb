"""
Requests that wait for a service: in order, bounded in number and in time. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class HoldQueue(Generic[T]):
    """The held requests of one Endpoint, the oldest first, each with the time it came."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._since: OrderedDict[T, float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<HoldQueue {len(self._since)} of {self.most}>"

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, request: T) -> bool:
        return request in self._since

    @property
    def is_full(self) -> bool:
        return len(self._since) >= self.most

    def add(self, request: T, now: float) -> bool:
        """Hold a request; return False, and hold nothing, if there is no place."""
        if self.is_full:
            return False
        self._since[request] = now
        return True

    def remove(self, request: T) -> float | None:
        """Give up a request's place; return since when it had it, None if it had none."""
        return self._since.pop(request, None)

    def pop(self) -> tuple[T, float]:
        """Remove the oldest request, and return it with the time it came."""
        return self._since.popitem(last=False)

    def since(self) -> Iterator[tuple[T, float]]:
        """Yield a snapshot of the requests, the oldest first."""
        yield from list(self._since.items())

    def pop_expired(self, now: float, hold_seconds: float) -> list[T]:
        """Remove and return the requests that have waited for so long."""
        expired = []
        while self._since:
            request, since = next(iter(self._since.items()))
            if now - since < hold_seconds:
                break
            del self._since[request]
            expired.append(request)
        return expired
