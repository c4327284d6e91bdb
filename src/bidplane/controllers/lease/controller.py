"""
The lease controller: shows each of the host's GPULeases in its agent's plane as a node.

While a lease is held, the plane has its mirror, and once its devices are free, a Node and a
ResourceSlice (`projection`). A reclaim notice is a taint, a condition and an Event, and evicts the
pods with the time that is left (`eviction`). Deleting the mirror requests release; the host's lease
is deleted only when no pod uses the devices. When the host's lease is gone, all its objects in the
plane go too.
"""

from __future__ import annotations

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import GPU_LEASE, NODE, POD
from bidplane.api.lease import Phase
from bidplane.api.reading import GPULease, read_lease
from bidplane.api.views import Node, Pod, ResourceSlice, read_pod
from bidplane.controllers.lease.eviction import LeaseEviction
from bidplane.controllers.lease.pods import LeasePods
from bidplane.controllers.lease.projection import LeaseProjection
from bidplane.core.leases import nodes
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache, PlaneCaches

Key = tuple[str, str]  # agent, lease


class LeaseController:
    """Mirrors GPULeases into planes, gives their pods notice, and returns their devices."""

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        recorder = Recorder("bidplane-lease", clock=clock)
        pods = LeasePods(host)
        self._projection = LeaseProjection(host, pods, recorder=recorder, clock=clock)
        self._eviction = LeaseEviction(host, pods, recorder=recorder, clock=clock)
        self._leases_on = host.leases.index(lambda lease: lease.spec.node)
        self._rooms: dict[str, object] = {}  # by host node: the CPU and memory that leases share
        self.controller: Controller[Key] = Controller("lease", self.reconcile, workers=WORKERS)
        host.leases.on_change(self._lease_changed)
        host.pods.on_change(self._host_pod_changed)
        host.nodes.on_change(self._host_node_changed)
        host.slices.on_change(self._host_slice_changed)
        planes.on_change(GPU_LEASE, self._mirror_changed, read=read_lease)
        planes.on_change(NODE, self._node_changed, read=Node)
        planes.on_change(POD, self._pod_changed, read=read_pod)
        planes.on_open(self._opened)

    def _lease_changed(self, event: EventType, lease: GPULease) -> None:
        self.controller.add((lease.spec.agent, lease.name))

    def _host_pod_changed(self, event: EventType, pod: Pod) -> None:
        # An eviction also waits for the annotation that reports a checkpoint.
        has_checkpoint = labels.CHECKPOINT in pod.annotations
        if (
            (event == "DELETED" or pod.is_deleted or has_checkpoint)
            and labels.LEASE in pod.labels
            and labels.AGENT in pod.labels
        ):
            self.controller.add((pod.labels[labels.AGENT], pod.labels[labels.LEASE]))

    def _host_node_changed(self, event: EventType, node: Node) -> None:
        room = None if event == "DELETED" else nodes.machine_room(node)
        if self._rooms.get(node.name) != room:
            self._rooms[node.name] = room
            self._reconcile_leases_on(node.name)

    def _host_slice_changed(self, event: EventType, slice_: ResourceSlice) -> None:
        self._reconcile_leases_on(slice_.node_name)

    def _reconcile_leases_on(self, host_node: str) -> None:
        for lease in self._leases_on[host_node]:
            self.controller.add((lease.spec.agent, lease.name))

    def _mirror_changed(self, plane: str, event: EventType, mirror: GPULease) -> None:
        self.controller.add((plane, mirror.name))

    def _node_changed(self, plane: str, event: EventType, node: Node) -> None:
        self.controller.add((plane, node.name))

    def _pod_changed(self, plane: str, event: EventType, pod: Pod) -> None:
        if pod.node_name:
            self.controller.add((plane, pod.node_name))

    def _opened(self, plane: str) -> None:
        for lease in self._host.leases.items():
            if lease.spec.agent == plane:
                self.controller.add((plane, lease.name))

    async def reconcile(self, key: Key) -> float | None:
        """Bring the plane's view of one lease up to date; return the delay until the next run."""
        agent, name = key
        plane = self._planes.get(agent)
        if plane is None:
            return None
        namespace = host_namespace(agent)
        if self._host.leases.is_invalid(namespace, name):
            return None  # what nobody can read is neither shown nor ended
        lease = self._host.leases.get(namespace, name)
        mirror = next((m for m in plane.leases.items() if m.name == name), None)
        if lease is None and mirror is None and _is_offered(plane.nodes.get(None, name)):
            return None  # the offers controller's node, not a lease's
        if lease is None or lease.phase == Phase.RELEASED:
            await self._eviction.remove_pods(plane, name)
            await self._projection.remove(plane, name, mirror)
            return None
        if lease.status is None:
            return None  # the exchange writes it next
        await self._projection.show(plane, lease, mirror)
        if self._host.nodes.get(None, lease.spec.node) is None:
            await self._eviction.end_on_lost_node(plane, lease)
        elif mirror is not None and mirror.is_deleted:
            return await self._eviction.release(plane, lease, mirror)
        elif lease.phase == Phase.DRAINING:
            return await self._eviction.drain(plane, lease)
        else:
            await self._eviction.follow_host(plane, lease)
        return None


def _is_offered(node: Node | None) -> bool:
    return node is not None and labels.OFFERED in node.labels
