"""
Reports whether a pod uses a lease, for leases that outlive their pods.

The scheduler gives back what it won for a pod when the pod ends. A lease won by a Bid that
somebody wrote by hand stays until its author ends it, in use or not; the condition `InUse` says
which, and the exchange ranks it by that. A program's lease has no pod and gets no such condition.
"""

from __future__ import annotations

from bidplane.api.agent import host_namespace
from bidplane.api.kinds import BID, GPU_LEASE, POD
from bidplane.api.lease import CLAIMED, HELD, IN_USE, Phase
from bidplane.api.objects import is_deleted, phase_of
from bidplane.controllers.claiming import mark_in_use
from bidplane.core.hosting.translation import lease_label
from bidplane.core.scheduling import is_live_on, wants_gpus
from bidplane.core.scheduling.observed import is_by_hand
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.index import Index
from bidplane.machinery.planes import PlaneCache, PlaneCaches

LOOK_SECONDS = 15.0

Key = tuple[str, str]  # agent, lease


class UsageController:
    """Sets the condition `InUse` of leases that outlive their pods."""

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
        """Return True for a lease that outlives its pods."""
        reference = lease["spec"]["bid"]
        bid = self._host[BID].get(reference["namespace"], reference["name"])
        return bid is not None and is_by_hand(bid)

    async def reconcile(self, key: Key) -> float | None:
        """Update `InUse` of one lease; return the delay until the next run."""
        agent, name = key
        lease = self._host[GPU_LEASE].get(host_namespace(agent), name)
        if lease is None or is_deleted(lease) or phase_of(lease) != Phase.ACTIVE:
            return None
        if not self._stays(lease) or _reason(lease) == HELD:
            return None
        plane = self._planes.get(agent)
        in_plane = plane[POD].items() if plane is not None else ()
        # Pods without GPUs do not use what is paid for.
        used = any(is_live_on(pod, name) and wants_gpus(pod) for pod in in_plane) or any(
            phase_of(pod) not in ("Succeeded", "Failed") and pod["spec"].get("resourceClaims")
            for pod in self._by_lease[name]
        )
        # A lease without the condition counts as in use.
        if used != (_status(lease, IN_USE) != "False"):
            await mark_in_use(self._host.client, lease, used=used, now=self._clock.now())
        return LOOK_SECONDS


def _condition(lease: Object, type_: str) -> Object:
    """The lease's condition of that type, or {}."""
    conditions = (lease.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == type_), {})


def _status(lease: Object, type_: str) -> str:
    return str(_condition(lease, type_).get("status", ""))


def _reason(lease: Object) -> str:
    """The reason of the condition `Claimed`."""
    return str(_condition(lease, CLAIMED).get("reason", ""))
