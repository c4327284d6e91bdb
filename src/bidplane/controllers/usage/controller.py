"""
Reports whether a pod uses a lease, for leases that outlive their pods.

The scheduler gives back what it won for a pod when the pod ends. A lease won by a Bid that
somebody wrote by hand stays until its author ends it, in use or not; the condition `InUse` says
which, and the exchange ranks it by that. A program's lease has no pod and gets no such condition.
"""

from __future__ import annotations

from bidplane.api.agent import host_namespace
from bidplane.api.lease import CLAIMED, HELD, IN_USE, Phase
from bidplane.api.reading import GPULease
from bidplane.controllers.conditions import mark_in_use
from bidplane.core.hosting.translation import lease_label
from bidplane.core.scheduling import is_live_on, wants_gpus
from bidplane.core.scheduling.observed import is_by_hand
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache, PlaneCaches

LOOK_SECONDS = 15.0

Key = tuple[str, str]  # agent, lease


class UsageController:
    """Sets the condition `InUse` of leases that outlive their pods."""

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._by_lease = host.pods.index(lease_label)
        self.controller: Controller[Key] = Controller("usage", self.reconcile)
        host.leases.on_change(self._changed)

    def _changed(self, event: EventType, lease: GPULease) -> None:
        if event != "DELETED" and lease.phase == Phase.ACTIVE and self._outlives_pods(lease):
            self.controller.add((lease.spec.agent, lease.name))

    def _outlives_pods(self, lease: GPULease) -> bool:
        """Return True for a lease that was won by a bid written by hand."""
        bid = self._host.bids.get(lease.spec.bid.namespace, lease.spec.bid.name)
        return bid is not None and is_by_hand(bid)

    async def reconcile(self, key: Key) -> float | None:
        """Update `InUse` of one lease; return the delay until the next run."""
        agent, name = key
        lease = self._host.leases.get(host_namespace(agent), name)
        if lease is None or lease.is_deleted or lease.phase != Phase.ACTIVE:
            return None
        claimed = lease.condition(CLAIMED)
        if not self._outlives_pods(lease) or (claimed is not None and claimed.reason == HELD):
            return None
        used = self._is_used(agent, name)
        # A lease without the condition counts as in use.
        in_use = lease.condition(IN_USE)
        if used != (in_use is None or in_use.status != "False"):
            await mark_in_use(self._host.client, lease, used=used, now=self._clock.now())
        return LOOK_SECONDS

    def _is_used(self, agent: str, lease: str) -> bool:
        """Return True if a pod with GPUs is on the lease: one without does not use what is paid."""
        plane = self._planes.get(agent)
        in_plane = plane.pods.items() if plane is not None else ()
        return any(is_live_on(pod, lease) and wants_gpus(pod) for pod in in_plane) or any(
            not pod.has_ended and pod.claim_references for pod in self._by_lease[lease]
        )
