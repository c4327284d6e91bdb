"""
A lease in its agent's plane: the mirror of the GPULease and, once its devices are free, a Node and
its ResourceSlices.

The plane's devices follow those of the host: a link that got worse is shown in the slice, in a
condition of the lease and in Events.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.kinds import GPU_LEASE, NODE, RESOURCE_SLICE
from bidplane.api.lease import LINK_DEGRADED, Phase
from bidplane.api.objects import Fields, status_of
from bidplane.api.reading import GPULease
from bidplane.api.times import rfc3339
from bidplane.api.views import Node, ResourceClaim
from bidplane.controllers.conditions import mark_links
from bidplane.controllers.lease.companions import CompanionDeviceClaims, DevicesTaken
from bidplane.controllers.lease.pods import LeasePods
from bidplane.core.devices import companions, links
from bidplane.core.devices.migdevices import is_whole_gpu
from bidplane.core.hosting.translation import origin
from bidplane.core.leases import nodes, notice
from bidplane.errors import AlreadyExists, NotFound
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache


class LeaseProjection:
    """Creates, updates and removes the objects that show leases in planes."""

    def __init__(
        self, host: PlaneCache, pods: LeasePods, *, recorder: Recorder, clock: Clock
    ) -> None:
        self._host = host
        self._pods = pods
        self._recorder = recorder
        self._clock = clock
        self._slices_on = host.slices.index(lambda slice_: slice_.node_name)
        self._companions = CompanionDeviceClaims(host, clock=clock)
        # The uids of the nodes whose ResourceSlice exists. Empty after a restart, which then
        # creates each slice again and is told that it exists.
        self._sliced: set[str] = set()
        self._links: dict[str, links.Links] = {}  # by node uid: the links that its slice shows

    async def show(self, plane: PlaneCache, lease: GPULease, mirror: GPULease | None) -> None:
        """Create or update the lease's mirror, and once its devices are free, its node."""
        status = status_of(lease.json)
        mirror_json = mirror.json if mirror is not None else None
        if mirror_json is None:
            namespace = self._namespace(lease)
            with suppress(AlreadyExists):
                mirror_json = await plane.client.create(
                    GPU_LEASE,
                    {**nodes.mirror(lease, namespace), "status": status},
                    namespace,
                    with_status=True,
                )
        if mirror_json is not None and _is_news(status_of(mirror_json), status):
            await plane.client.patch(
                GPU_LEASE,
                lease.name,
                {"status": status},
                mirror_json["metadata"]["namespace"],
                subresource="status",
            )
        if not lease.is_ready:
            return
        node = plane.nodes.get(None, lease.name)
        is_shown = node is not None and node.uid in self._sliced
        claim = None if is_shown else await self._companions.ensure_claim(lease)
        if isinstance(claim, DevicesTaken):
            await self._recorder.record(
                plane.client, mirror_json or lease, "DeviceTaken", claim.message, type="Warning"
            )
        else:
            await self._show_node(plane, lease, claim)

    async def remove(self, plane: PlaneCache, name: str, mirror: GPULease | None) -> None:
        """Delete the node, with its slices, and the mirror of a lease that has ended."""
        if (node := plane.nodes.get(None, name)) is not None:
            self._sliced.discard(node.uid)
            self._links.pop(node.uid, None)
            with suppress(NotFound):
                await plane.client.delete(NODE, name)
        if mirror is not None:
            with suppress(NotFound):
                if not mirror.is_deleted:
                    await plane.client.delete(GPU_LEASE, name, mirror.namespace)
                await plane.client.patch(
                    GPU_LEASE, name, {"metadata": {"finalizers": None}}, mirror.namespace
                )

    def _namespace(self, lease: GPULease) -> str:
        """Return the plane's namespace in which the lease's mirror is."""
        if lease.spec.plane_namespace:
            return lease.spec.plane_namespace
        # An earlier version did not store the namespace: read it from the bid while that exists.
        bid = self._host.bids.get(lease.spec.bid.namespace, lease.spec.bid.name)
        plane_pod = origin(bid.json) if bid is not None else None
        return plane_pod[0] if plane_pod else "default"

    async def _show_node(
        self, plane: PlaneCache, lease: GPULease, claim: ResourceClaim | None
    ) -> None:
        """
        Create or update the Node and ResourceSlices of a lease; `claim` has its companion devices.
        """
        node = plane.nodes.get(None, lease.name)
        host_node = self._host.nodes.get(None, lease.spec.node)
        devices = nodes.devices_shown(lease, self._slices_on[lease.spec.node])
        at_start, current = links.read(node) if node is not None else {}, links.links_of(devices)
        problems = links.problems(at_start, current)
        status = nodes.node_status(
            lease,
            host_node,
            self._gpus_of_machine(lease),
            degraded=problems,
            now=rfc3339(self._clock.now()),
        )
        if node is None:
            draft = {**nodes.node(lease, host_node, devices), "status": status}
            with suppress(AlreadyExists):
                node = Node(await plane.client.create(NODE, draft))
        if node is None:
            return
        if node.uid not in self._sliced:
            await self._create_slices(plane, lease, node, claim, current)
        # A missing device shows no links: the exchange reports missing devices.
        if self._links.get(node.uid) != current and len(current) == len(devices):
            await self._show_links(plane, lease, node, problems)
            self._links[node.uid] = current
        await self._update_node(plane, lease, node, status)

    async def _create_slices(
        self,
        plane: PlaneCache,
        lease: GPULease,
        node: Node,
        claim: ResourceClaim | None,
        current: links.Links,
    ) -> None:
        """Create the slices of a node, which owns them, so that they are deleted with it."""
        host_slices = self._host.slices.items()
        if claim is not None:
            for slice_ in companions.slices(lease.name, claim, host_slices, node):
                with suppress(AlreadyExists):
                    await plane.client.create(RESOURCE_SLICE, slice_)
        with suppress(AlreadyExists):
            slice_ = nodes.resource_slice(lease, host_slices, node)
            await plane.client.create(RESOURCE_SLICE, slice_)
            self._links[node.uid] = current
        self._sliced.add(node.uid)

    async def _update_node(
        self, plane: PlaneCache, lease: GPULease, node: Node, status: Fields
    ) -> None:
        """Write the node's taints and status where they changed; record a new notice."""
        taints = nodes.taints(lease)
        if list(node.taints) != taints:
            change = {"spec": {"taints": taints or None}}
            node = Node(await plane.client.patch(NODE, lease.name, change))
        if _conditions(status) != _conditions(node.status) or status["capacity"] != node.status.get(
            "capacity"
        ):
            await plane.client.patch(NODE, lease.name, {"status": status}, subresource="status")
            if lease.phase == Phase.DRAINING:
                message = notice.explanation(notice.notice_of(lease))
                await self._recorder.record(
                    plane.client, node, "ReclaimNotice", message, type="Warning"
                )

    async def _show_links(
        self, plane: PlaneCache, lease: GPULease, node: Node, problems: list[str]
    ) -> None:
        """
        Update the devices in the plane's slice, and report changed links to the lease's node and
        pods.
        """
        spec = nodes.resource_slice(lease, self._slices_on[lease.spec.node], node)["spec"]
        current = (await plane.client.get(RESOURCE_SLICE, lease.name))["spec"]
        if links.differ(current, spec):
            pool = {**current["pool"], "generation": current["pool"]["generation"] + 1}
            change = {"spec": {"devices": spec["devices"], "pool": pool}}
            await plane.client.patch(RESOURCE_SLICE, lease.name, change)
        changed = await mark_links(self._host.client, lease, problems, now=self._clock.now())
        if changed:
            reason = LINK_DEGRADED if problems else "LinkRestored"
            message = "; ".join(problems) or "the links of its devices are restored"
            for about in (node, *self._pods.in_plane(plane, lease.name)):
                await self._recorder.record(
                    plane.client, about, reason, message, type="Warning" if problems else "Normal"
                )

    def _gpus_of_machine(self, lease: GPULease) -> int:
        """Return how many whole GPUs the lease's machine has, leased or not."""
        driver = lease.spec.devices[0].driver
        return sum(
            is_whole_gpu(device)
            for slice_ in self._slices_on[lease.spec.node]
            if slice_.driver == driver
            for device in slice_.devices
        )


def _is_news(current: Fields, status: Fields) -> bool:
    """
    Return True if the mirror's status must be written. That a pending lease is claimed is written
    together with the change to Active that follows.
    """
    if current.get("phase") != Phase.PENDING or status["phase"] != Phase.PENDING:
        return current != status
    return any(current.get(key) != status.get(key) for key in {*current, *status} - {"conditions"})


def _conditions(status: Fields) -> list[tuple[str, str, str]]:
    """Return the parts of the conditions that matter for a comparison."""
    return [(c["type"], c["status"], c.get("message", "")) for c in status.get("conditions") or ()]
