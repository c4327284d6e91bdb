"""
Leases that a program holds: claimed while the bid's heartbeat continues, ended when it stops. See
`core/leases/holders`.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.agent import host_namespace
from bidplane.api.kinds import BID, GPU_LEASE
from bidplane.api.lease import HELD
from bidplane.api.reading import Bid, GPULease, read_bid, read_lease
from bidplane.api.times import parse_rfc3339
from bidplane.controllers.conditions import mark_claimed
from bidplane.core.hosting.translation import host_name
from bidplane.core.leases import holders
from bidplane.core.leases.holders import EndHold, Keep, LastBeat, MarkClaimed
from bidplane.core.leases.notice import notice_of
from bidplane.errors import NotFound
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache, PlaneCaches

Key = tuple[str, str, str]  # plane, and the bid's namespace and name

_MESSAGES = {
    "HoldExpired": "no heartbeat came within the bid's hold-seconds: the lease is released",
    "NoticeOver": "the notice is over: the lease is released",
}


class BidHeartbeatController:
    """Claims the leases of bids that a program holds, and ends them when its heartbeat stops."""

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-holds", clock=clock)
        # Forgotten by a restart, which then grants every hold its time anew.
        self._heartbeats: dict[Key, LastBeat] = {}
        self.controller: Controller[Key] = Controller("holds", self.reconcile)
        planes.on_change(BID, self._bid_changed, read=read_bid)
        planes.on_change(GPU_LEASE, self._mirror_changed, read=read_lease)

    def _bid_changed(self, plane: str, event: EventType, bid: Bid) -> None:
        key = (plane, bid.namespace, bid.name)
        if holders.hold_seconds(bid) is not None or key in self._heartbeats:
            self.controller.add(key)

    def _mirror_changed(self, plane: str, event: EventType, mirror: GPULease) -> None:
        """
        Reconcile the hold of a changed mirror: it is written after the host's lease is in our
        cache.
        """
        for key in self._heartbeats:
            if key[0] == plane and host_name(*key[1:]) == mirror.spec.bid.name:
                self.controller.add(key)

    async def reconcile(self, key: Key) -> float | None:
        """Claim, keep or end the leases of one held bid; return the delay until the next run."""
        agent, namespace, name = key
        plane = self._planes.get(agent)
        if plane is None:
            return None
        bid = plane.bids.get(namespace, name)
        seconds = holders.hold_seconds(bid) if bid is not None else None
        if bid is None or seconds is None or bid.is_deleted:
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
                    await plane.client.delete(BID, name, namespace, uid=bid.uid)
                return None
            case Keep(look_again=seconds_left):
                return seconds_left

    def _leases(self, plane: PlaneCache, bid: Bid) -> list[GPULease]:
        """Return the host's leases that the bid won."""
        on_host = host_name(bid.namespace, bid.name)
        leases = (
            self._host.leases.get(host_namespace(plane.name), mirror.name)
            for mirror in plane.leases.items()
            if mirror.spec.bid.name == on_host
        )
        return [lease for lease in leases if lease is not None]


def _reclaim_at(leases: list[GPULease]) -> float | None:
    """Return the earliest end of notice among the leases; None if none is under notice."""
    notices = [notice for lease in leases if (notice := notice_of(lease)) is not None]
    return min((parse_rfc3339(notice.reclaim_at) for notice in notices), default=None)
