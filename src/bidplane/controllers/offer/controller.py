"""
Shows the CPU that node owners offer to pods without GPUs.

Each plane with such pods gets a Node per offer, with the part of it that other agents' pods leave.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.kinds import NODE, POD
from bidplane.api.times import rfc3339
from bidplane.api.views import Node, Pod, read_pod
from bidplane.controllers.podwrites import delete_pod
from bidplane.core.nodes import offers
from bidplane.core.scheduling import wants_gpus
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache, PlaneCaches

_GATHER_SECONDS = 0.05


class OffersController:
    """Shows each offered host node in the planes that have pods without GPUs."""

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._users: set[str] = set()  # planes with pods without GPUs
        self._pods_on_offer = host.pods.index(_offering_node)  # by host node
        self.controller: Controller[str] = Controller("offers", self.reconcile)
        planes.on_change(POD, self._pod_changed, read=read_pod)
        host.nodes.on_change(self._host_node_changed)
        host.pods.on_change(self._host_pod_changed)

    def _pod_changed(self, plane: str, event: EventType, pod: Pod) -> None:
        if not wants_gpus(pod):
            self._users.add(plane)
            self.controller.add_after(plane, _GATHER_SECONDS)

    def _host_node_changed(self, event: EventType, node: Node) -> None:
        if offers.offer_of(node) or self._users:
            self._reconcile_users()

    def _host_pod_changed(self, event: EventType, pod: Pod) -> None:
        if _offering_node(pod):
            self._reconcile_users()

    def _reconcile_users(self) -> None:
        """Reconcile every plane that has pods without GPUs."""
        for plane in self._users:
            self.controller.add_after(plane, _GATHER_SECONDS)

    async def reconcile(self, name: str) -> None:
        """Show all offers in one plane, and remove those that are gone or unused."""
        plane = self._planes.awake(name)
        if plane is None:
            return
        pods = [pod for pod in plane.pods.items() if not wants_gpus(pod)]
        used = any(not pod.has_ended for pod in pods)
        if not used:
            self._users.discard(name)
        offered = {
            offers.PREFIX + node.name: node
            for node in self._host.nodes.items()
            if used and offers.offer_of(node)
        }
        for node in plane.nodes.items():
            if labels.OFFERED in node.labels and node.name not in offered:
                await self._remove(plane, node.name)
        for node_name, host_node in offered.items():
            await self._show(plane, node_name, host_node)

    async def _show(self, plane: PlaneCache, name: str, host_node: Node) -> None:
        """Create or update an offer's node in the plane."""
        other_pods = [
            pod
            for pod in self._pods_on_offer[host_node.name]
            if pod.labels.get(labels.AGENT) != plane.name
        ]
        remaining = offers.left_of(offers.offer_of(host_node), other_pods)
        plane_node = offers.node(host_node, remaining, now=rfc3339(self._clock.now()))
        node = plane.nodes.get(None, name)
        if node is None:
            with suppress(AlreadyExists):
                await plane.client.create(NODE, plane_node)
        elif node.status.get("allocatable") != plane_node["status"]["allocatable"]:
            room = {key: plane_node["status"][key] for key in ("capacity", "allocatable")}
            await plane.client.patch(NODE, name, {"status": room}, subresource="status")

    async def _remove(self, plane: PlaneCache, name: str) -> None:
        """Delete an offer's node from the plane, with the pods that run there."""
        for pod in plane.pods.items():
            if pod.node_name == name and not pod.has_ended:
                await delete_pod(plane.client, pod)
        with suppress(NotFound):
            await plane.client.delete(NODE, name)


def _offering_node(host_pod: Pod) -> str:
    """Return the host node whose offer the pod uses, or ""."""
    return host_pod.labels.get(labels.OFFERED, "")
