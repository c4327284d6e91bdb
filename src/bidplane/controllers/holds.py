"""
Leases that a program holds: claimed while the bid's heartbeat continues, ended when it stops.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.agent import host_namespace
from bidplane.api.kinds import BID, GPU_LEASE
from bidplane.api.lease import HELD, Phase
from bidplane.api.objects import is_deleted, phase_of
from bidplane.api.times import parse_rfc3339
from bidplane.controllers.claiming import mark_claimed
from bidplane.core.hosting.translation import host_name
from bidplane.core.leases import holders
from bidplane.core.leases.holders import EndHold, Keep, LastBeat, MarkClaimed
from bidplane.errors import NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache, PlaneCaches

Key = tuple[str, str, str]  # plane, and the bid's namespace and name

_MESSAGES = {
    "HoldExpired": "no heartbeat came within the bid's hold-seconds: the lease is released",
    "NoticeOver": "the notice is over: the lease is released",
}


class HoldsController:
    """Claims the leases of bids that a program holds, and ends them when its heartbeat stops."""

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-holds", clock=clock)
        # Forgotten by a restart, which then grants every hold its time anew.
        self._heartbeats: dict[Key, LastBeat] = {}
        self.controller: Controller[Key] = Controller("holds", self.reconcile)
        planes.on_change(BID, self._bid_changed)
        planes.on_change(GPU_LEASE, self._mirror_changed)

    def _bid_changed(self, plane: str, event: EventType, bid: Object) -> None:
        key = (plane, bid["metadata"]["namespace"], bid["metadata"]["name"])
        if holders.hold_seconds(bid) is not None or key in self._heartbeats:
            self.controller.add(key)

    def _mirror_changed(self, plane: str, event: EventType, mirror: Object) -> None:
        """
        Reconcile the hold of a changed mirror: it is written after the host's lease is in our
        cache.
        """
        for key in self._heartbeats:
            if key[0] == plane and host_name(*key[1:]) == mirror["spec"]["bid"]["name"]:
                self.controller.add(key)

    async def reconcile(self, key: Key) -> float | None:
        """Claim, keep or end the leases of one held bid; return the delay until the next run."""
        agent, namespace, name = key
        plane = self._planes.get(agent)
        if plane is None:
            return None
        bid = plane[BID].get(namespace, name)
        seconds = holders.hold_seconds(bid) if bid is not None else None
        if bid is None or seconds is None or is_deleted(bid):
            self._heartbeats.pop(key, None)
            return None
        now = self._clock.now()
        heartbeat = self._heartbeats[key] = holders.see(bid, self._heartbeats.get(key), now=now)
        leases = self._leases(plane, bid)
        match holders.decide(seconds, heartbeat, leases, now=now, reclaim_at=_reclaim_at(leases)):
            case MarkClaimed(lease=lease):
                message = f"held by the writer of the bid {namespace}/{name}"
                await mark_claimed(self._host.client, lease, reason=HELD, message=message, now=now)
                return 0.05  # the bid may have won further leases
            case EndHold(reason=reason):
                await self._recorder.record(
                    plane.client, bid, reason, _MESSAGES[reason], type="Warning"
                )
                with suppress(NotFound):
                    await plane.client.delete(BID, name, namespace, uid=bid["metadata"]["uid"])
                return None
            case Keep(look_again=seconds_left):
                return seconds_left

    def _leases(self, plane: PlaneCache, bid: Object) -> list[Object]:
        """The host's leases that the bid won."""
        on_host = host_name(bid["metadata"]["namespace"], bid["metadata"]["name"])
        leases = (
            self._host[GPU_LEASE].get(host_namespace(plane.name), mirror["metadata"]["name"])
            for mirror in plane[GPU_LEASE].items()
            if mirror["spec"]["bid"]["name"] == on_host
        )
        return [lease for lease in leases if lease is not None]


def _reclaim_at(leases: list[Object]) -> float | None:
    """The earliest end of notice among the leases, or None if none is draining."""
    ends = [
        parse_rfc3339(lease["status"]["reclaimAt"])
        for lease in leases
        if phase_of(lease) == Phase.DRAINING and lease["status"].get("reclaimAt")
    ]
    return min(ends, default=None)
