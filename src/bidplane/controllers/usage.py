"""
Whether a pod is on a lease: said of leases that stay when their pods have gone.

What the scheduler won for a pod it gives back with the pod. A lease won by a Bid that somebody
wrote by hand stays until its author ends it, in use or not; the condition `InUse` says which,
and the exchange ranks it by that. A program's lease has no pod, and nothing is said of it.
"""

from __future__ import annotations

from bidplane.api.agent import host_namespace
from bidplane.api.kinds import BID, GPU_LEASE, POD
from bidplane.api.lease import CLAIMED, HELD, IN_USE, Phase
from bidplane.controllers.claiming import tell_use
from bidplane.core.scheduling import is_deleted, is_live_on, phase_of
from bidplane.core.scheduling.seen import is_by_hand
from bidplane.core.translation import lease_label
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.index import Index
from bidplane.machinery.planes import PlaneCache, PlaneCaches

LOOK_SECONDS = 15.0

Key = tuple[str, str]  # agent, lease


class UsageController:
    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._by_lease = Index(host[POD], lease_label)
        self.controller: Controller[Key] = Controller("usage", self.reconcile)
        host[GPU_LEASE].on_change(self._changed)

    def _changed(self, event: EventType, lease: Object) -> None:
        if event != "DELETED" and phase_of(lease) == Phase.ACTIVE and self._stays(lease):
            self.controller.add((lease["spec"]["agent"], lease["metadata"]["name"]))

    def _stays(self, lease: Object) -> bool:
        """Whether it outlives its pods."""
        reference = lease["spec"]["bid"]
        bid = self._host[BID].get(reference["namespace"], reference["name"])
        return bid is not None and is_by_hand(bid)

    async def reconcile(self, key: Key) -> float | None:
        agent, name = key
        lease = self._host[GPU_LEASE].get(host_namespace(agent), name)
        if lease is None or is_deleted(lease) or phase_of(lease) != Phase.ACTIVE:
            return None
        if not self._stays(lease) or _reason(lease) == HELD:
            return None
        plane = self._planes.get(agent)
        in_plane = plane[POD].items() if plane is not None else ()
        used = any(is_live_on(pod, name) for pod in in_plane) or any(
            phase_of(pod) not in ("Succeeded", "Failed") for pod in self._by_lease[name]
        )
        # One that was never left is not told to be in use: it counts as that.
        if used != (_status(lease, IN_USE) != "False"):
            await tell_use(self._host.client, lease, used=used, now=self._clock.now())
        return LOOK_SECONDS


def _condition(lease: Object, type_: str) -> Object:
    conditions = (lease.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == type_), {})


def _status(lease: Object, type_: str) -> str:
    return str(_condition(lease, type_).get("status", ""))


def _reason(lease: Object) -> str:
    return str(_condition(lease, CLAIMED).get("reason", ""))
