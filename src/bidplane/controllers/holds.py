"""Leases that a program holds: claimed while its bid's beat goes on, ended when it stops."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.agent import host_namespace
from bidplane.api.kinds import BID, GPU_LEASE
from bidplane.api.lease import HELD, Phase
from bidplane.controllers.claiming import claim
from bidplane.core import holds
from bidplane.core.holds import Claim, End, Keep, Seen
from bidplane.core.scheduling import is_deleted, phase_of
from bidplane.core.translation import host_name
from bidplane.errors import NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.machinery.controller import Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache, PlaneCaches

Key = tuple[str, str, str]  # plane, and the bid's namespace and name

_WORDS = {
    "HoldExpired": "its holder has not been heard of for as long as it said: released",
    "NoticeOver": "its notice is over: released",
}


class HoldsController:
    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-holds", clock=clock)
        # Forgotten by a restart, which then grants every hold its time anew.
        self._seen: dict[Key, Seen] = {}
        self.controller: Controller[Key] = Controller("holds", self.reconcile)
        planes.on_change(BID, self._bid_changed)
        planes.on_change(GPU_LEASE, self._mirror_changed)

    def _bid_changed(self, plane: str, event: EventType, bid: Object) -> None:
        key = (plane, bid["metadata"]["namespace"], bid["metadata"]["name"])
        if holds.hold_seconds(bid) is not None or key in self._seen:
            self.controller.add(key)

    def _mirror_changed(self, plane: str, event: EventType, mirror: Object) -> None:
        """Told of on the plane's side: the mirror is written after the host's lease is known."""
        for key in self._seen:
            if key[0] == plane and host_name(*key[1:]) == mirror["spec"]["bid"]["name"]:
                self.controller.add(key)

    async def reconcile(self, key: Key) -> float | None:
        agent, namespace, name = key
        plane = self._planes.get(agent)
        if plane is None:
            return None
        bid = plane[BID].get(namespace, name)
        seconds = holds.hold_seconds(bid) if bid is not None else None
        if bid is None or seconds is None or is_deleted(bid):
            self._seen.pop(key, None)
            return None
        now = self._clock.now()
        seen = self._seen[key] = holds.see(bid, self._seen.get(key), now=now)
        leases = self._leases(plane, bid)
        match holds.decide(seconds, seen, leases, now=now, reclaim_at=_reclaim_at(leases)):
            case Claim(lease=lease):
                words = f"held by the writer of the bid {namespace}/{name}"
                await claim(self._host.client, lease, reason=HELD, message=words, now=now)
                return 0.05  # there may be another part of it
            case End(reason=reason):
                await self._recorder.record(
                    plane.client, bid, reason, _WORDS[reason], type="Warning"
                )
                with suppress(NotFound):
                    await plane.client.delete(BID, name, namespace, uid=bid["metadata"]["uid"])
                return None
            case Keep(look_again=left):
                return left

    def _leases(self, plane: PlaneCache, bid: Object) -> list[Object]:
        on_host = host_name(bid["metadata"]["namespace"], bid["metadata"]["name"])
        found = (
            self._host[GPU_LEASE].get(host_namespace(plane.name), mirror["metadata"]["name"])
            for mirror in plane[GPU_LEASE].items()
            if mirror["spec"]["bid"]["name"] == on_host
        )
        return [lease for lease in found if lease is not None]


def _reclaim_at(leases: list[Object]) -> float | None:
    ends = [
        parse_rfc3339(lease["status"]["reclaimAt"])
        for lease in leases
        if phase_of(lease) == Phase.DRAINING and lease["status"].get("reclaimAt")
    ]
    return min(ends, default=None)
