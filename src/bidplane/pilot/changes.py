"""
Changes of the host that the pilot looks at without waiting for its next half minute.

They are few: a rollout that fails, a link that gets worse, a node that goes away, a Proposal that
somebody decided on. Prices, bids and requests change all the time, and wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bidplane.api.kinds import ENDPOINT, GPU_LEASE, NODE, PROPOSAL, Kind, Object
from bidplane.api.lease import LINK_DEGRADED
from bidplane.api.objects import is_true, uid_of
from bidplane.kube.client import EventType, WatchingClient
from bidplane.machinery.clock import Clock
from bidplane.machinery.informer import Informer


def _status(obj: Object, field: str) -> str:
    value = (obj.get("status") or {}).get(field)
    return str(value) if value else ""


# By kind, what the pilot looks at for: another text than before wakes it, and "" is nothing.
_NOTEWORTHY: dict[Kind, Callable[[Object], str]] = {
    ENDPOINT: lambda obj: _status(obj, "failed"),
    GPU_LEASE: lambda obj: "degraded" if is_true(obj, LINK_DEGRADED) else "",
    NODE: lambda obj: "" if is_true(obj, "Ready") else "not ready",
    PROPOSAL: lambda obj: _status(obj, "phase"),
}


class HostChanges:
    """Follows the host. `seen` is set by a change, and cleared by whoever looks then."""

    def __init__(self, client: WatchingClient, *, clock: Clock) -> None:
        self.seen = asyncio.Event()
        self._before: dict[str, str] = {}  # by uid
        self._informers = [Informer(client, kind, clock=clock) for kind in _NOTEWORTHY]
        for informer in self._informers:
            informer.on_change(self._handler(informer))

    async def follow(self) -> None:
        """Follow the host until cancelled; while it is away, there is no change."""
        await asyncio.gather(*(informer.run() for informer in self._informers))

    def _handler(self, informer: Informer) -> Callable[[EventType, Object], None]:
        read = _NOTEWORTHY[informer.kind]

        def changed(event: EventType, obj: Object) -> None:
            uid = uid_of(obj)
            if event == "DELETED":
                self._before.pop(uid, None)
                return
            before, now = self._before.get(uid, ""), read(obj)
            self._before[uid] = now
            # What is there when it begins to follow is no change.
            if now != before and informer.synced.is_set():
                self.seen.set()

        return changed
