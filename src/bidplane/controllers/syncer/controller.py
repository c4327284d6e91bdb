"""
The syncer: copies an agent's bids and bound pods to the host, and their status back.

The plane holds the desired state, the host the actual one. A host object whose original is gone,
or has another uid, is removed. Every step can be repeated.

Bids are copied as they are, also those that cannot be read: the exchange says in their status what
is wrong.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import (
    BID,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    EVENT,
    POD,
    SERVICE,
    VOLUME_CLAIM,
    Kind,
    Object,
)
from bidplane.api.reading import Agent, GPULease
from bidplane.api.views import KubeObject, Pod, read_pod
from bidplane.controllers.syncer.dependencies import LOOK_SECONDS, PodDependencies
from bidplane.controllers.syncer.events import copy_event
from bidplane.controllers.syncer.pods import PodSync
from bidplane.core.hosting import translation
from bidplane.core.hosting.translation import lease_label
from bidplane.errors import NotFound
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.planes import PlaneCache, PlaneCaches
from bidplane.wire.patches.jsonpatch import merge_change

Key = tuple[str, Kind, str, str]  # agent, kind, and the plane's namespace and name


class SyncerController:
    """Copies bids and bound pods from planes to the host, and their status and Events back."""

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._dependencies = PodDependencies(host.client, clock=clock)
        self._pods = PodSync(host, self._dependencies, clock=clock)
        self._host_pods_of_lease = host.pods.index(lease_label)
        self.controller: Controller[Key] = Controller("syncer", self.reconcile, workers=WORKERS)
        planes.on_change(BID, self._bid_changed, read=KubeObject)
        planes.on_change(POD, self._pod_changed, read=read_pod)
        planes.on_change(VOLUME_CLAIM, self._volume_claim_changed, read=KubeObject)
        for kind in (SERVICE, ENDPOINT_SLICE):
            planes.on_change(kind, self._service_changed, read=KubeObject)
        host[BID].on_change(lambda event, obj: self._add_original(BID, KubeObject(obj)))
        host.pods.on_change(lambda event, pod: self._add_original(POD, pod))
        host[EVENT].on_change(self._event_happened)
        host.leases.on_change(self._lease_changed)
        host.agents.on_change(self._agent_changed)
        planes.on_open(self._opened)

    def _bid_changed(self, plane: str, event: EventType, bid: KubeObject) -> None:
        self.controller.add((plane, BID, bid.namespace, bid.name))

    def _pod_changed(self, plane: str, event: EventType, pod: Pod) -> None:
        self.controller.add((plane, POD, pod.namespace, pod.name))
        self._refresh_copies_later(plane)

    def _volume_claim_changed(self, plane: str, event: EventType, claim: KubeObject) -> None:
        self._refresh_copies_later(plane)

    def _refresh_copies_later(self, plane: str) -> None:
        """
        Refresh the copies of what the plane's pods refer to: a changed pod or volume claim may
        need others.
        """
        self.controller.add_after(_copies_key(plane), LOOK_SECONDS)

    def _service_changed(self, plane: str, event: EventType, service: KubeObject) -> None:
        """Reconcile the pods of a Service's namespace: their hosts file lists its endpoints."""
        cache = self._planes.awake(plane)
        for pod in cache.pods.in_namespace(service.namespace) if cache is not None else ():
            if pod.node_name:
                self.controller.add((plane, POD, pod.namespace, pod.name))

    def _agent_changed(self, event: EventType, agent: Agent) -> None:
        """Reconcile the agent's bids: a suspended agent has none on the host."""
        if event == "DELETED":
            self._dependencies.forget(agent.name)
        plane = self._planes.awake(agent.name)
        for bid in map(KubeObject, plane[BID].items() if plane is not None else ()):
            self.controller.add((agent.name, BID, bid.namespace, bid.name))

    def _add_original(self, kind: Kind, copy: KubeObject) -> None:
        """Reconcile the plane's object of which this host object is a copy."""
        original = translation.origin(copy)
        agent = copy.labels.get(labels.AGENT)
        if original is not None and agent is not None:
            self.controller.add((agent, kind, *original))

    def _lease_changed(self, event: EventType, lease: GPULease) -> None:
        """
        Reconcile the pods of a changed lease, also those bound before the lease reached our cache.
        """
        for host_pod in self._host_pods_of_lease[lease.name]:
            self._add_original(POD, host_pod)
        plane = self._planes.get(lease.spec.agent)
        for pod in plane.pods.items() if plane is not None else ():
            if pod.node_name == lease.name:
                self.controller.add((lease.spec.agent, POD, pod.namespace, pod.name))

    def _event_happened(self, event: EventType, obj: Object) -> None:
        """Reconcile an Event about a host pod."""
        about = obj.get("involvedObject") or {}
        if event != "DELETED" and about.get("kind") == "Pod":
            happened = KubeObject(obj)
            self.controller.add((happened.namespace, EVENT, happened.namespace, happened.name))

    def _opened(self, plane: str) -> None:
        """Reconcile all copies of a plane: an original may have gone while we did not run."""
        for kind in (BID, POD):
            for copy in map(KubeObject, self._host[kind].items()):
                if copy.labels.get(labels.AGENT) == plane:
                    self._add_original(kind, copy)

    async def reconcile(self, key: Key) -> float | None:
        """
        Make one bid, pod, Event or set of copies equal on both sides; return the delay until the
        next run.
        """
        agent, kind, namespace, name = key
        if kind == EVENT:
            await copy_event(self._host, self._planes, namespace, name)
            return None
        if kind == CONFIG_MAP:
            # Nothing changes in a plane that is not loaded.
            awake = self._planes.awake(agent)
            return await self._dependencies.refresh(awake) if awake is not None else None
        plane = self._planes.get(agent)
        if plane is None:
            return None
        on_host = host_namespace(agent), translation.host_name(namespace, name)
        if kind == BID:
            await self._sync_bid(
                plane, _view(plane[BID].get(namespace, name)), _view(self._host[BID].get(*on_host))
            )
            return None
        pod, host_pod = plane.pods.get(namespace, name), self._host.pods.get(*on_host)
        if host_pod is not None and not translation.is_copy_of(host_pod, pod):
            await self._delete_copy(POD, host_pod)
        elif pod is not None:
            return await self._pods.sync(plane, pod, host_pod)
        return None

    async def _delete_copy(self, kind: Kind, copy: KubeObject) -> None:
        """Delete a copy on the host, unless it is being deleted."""
        if not copy.is_deleted:
            with suppress(NotFound):
                await self._host.client.delete(kind, copy.name, copy.namespace, uid=copy.uid)

    async def _sync_bid(
        self, plane: PlaneCache, bid: KubeObject | None, copy: KubeObject | None
    ) -> None:
        """Copy the bid's spec to the host and its status back."""
        agent = self._host.agents.get(None, plane.name)
        is_suspended = agent is not None and agent.spec.suspended
        if copy is not None and (is_suspended or not translation.is_copy_of(copy, bid)):
            await self._delete_copy(BID, copy)
            return
        if bid is None or is_suspended:
            return
        if copy is None:
            if not bid.is_deleted:
                host_bid = translation.host_bid(plane.name, bid)
                await self._host.client.create(BID, host_bid, host_bid["metadata"]["namespace"])
            return
        if copy.spec != bid.spec:
            change = {"spec": merge_change(copy.spec, bid.spec)}
            await self._host.client.patch(BID, copy.name, change, copy.namespace)
        if copy.status and bid.status != copy.status:
            with suppress(NotFound):
                await plane.client.patch(
                    BID, bid.name, {"status": copy.status}, bid.namespace, subresource="status"
                )


def _view(obj: Object | None) -> KubeObject | None:
    return KubeObject(obj) if obj is not None else None


def _copies_key(agent: str) -> Key:
    """Return the key that refreshes all copies of an agent; it names no single object."""
    return (agent, CONFIG_MAP, "", "")
