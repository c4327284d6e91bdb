"""
The lease controller: shows each of the host's GPULeases in its agent's plane as a node.

While a lease is held, the plane has its mirror, and once its devices are free, a Node and a
ResourceSlice. A reclaim notice is a taint, a condition and an Event, and evicts the pods with the
time that is left. Deleting the mirror requests release; the host's lease is deleted only when no
pod uses the devices. When the host's lease is gone, all its objects in the plane go too.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, NODE, POD, POD_TEMPLATE, RESOURCE_SLICE
from bidplane.api.lease import LINK_DEGRADED, Phase
from bidplane.api.objects import is_deleted, phase_of
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.controllers.beside import CompanionDeviceClaims, DevicesTaken
from bidplane.controllers.claiming import mark_links
from bidplane.core.devices import companions, links
from bidplane.core.devices.migdevices import is_whole_gpu
from bidplane.core.hosting.translation import host_name, lease_label, origin
from bidplane.core.leases import nodes, notice, requeue
from bidplane.core.nodes.offers import host_node_of
from bidplane.core.scheduling import is_live_on
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType, KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.index import Index
from bidplane.machinery.planes import PlaneCache, PlaneCaches

Key = tuple[str, str]  # agent, lease


class LeaseController:
    """Mirrors GPULeases into planes, gives their pods notice, and returns their devices."""

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-lease", clock=clock)
        self._by_lease = Index(host[POD], lease_label)
        self._leases_on = Index(host[GPU_LEASE], lambda lease: lease["spec"]["node"])
        self._slices_of = Index(
            host[RESOURCE_SLICE], lambda slice_: slice_["spec"].get("nodeName", "")
        )
        self._companions = CompanionDeviceClaims(host, clock=clock)
        # The uids of the nodes whose ResourceSlice exists. Empty after a restart, which then
        # creates each slice again and is told that it exists.
        self._sliced: set[str] = set()
        self._links: dict[str, links.Links] = {}  # by node uid: the links that its slice shows
        self._rooms: dict[str, object] = {}  # by host node: the CPU and memory that leases share
        self.controller: Controller[Key] = Controller("lease", self.reconcile, workers=WORKERS)
        host[GPU_LEASE].on_change(self._host_changed)
        host[POD].on_change(self._host_pod_changed)
        host[NODE].on_change(self._host_node_changed)
        host[RESOURCE_SLICE].on_change(self._host_slice_changed)
        planes.on_change(GPU_LEASE, self._mirror_changed)
        planes.on_change(NODE, self._mirror_changed)
        planes.on_change(POD, self._pod_changed)
        planes.on_open(self._opened)

    def _host_changed(self, event: EventType, lease: Object) -> None:
        self.controller.add((lease["spec"]["agent"], lease["metadata"]["name"]))

    def _host_pod_changed(self, event: EventType, pod: Object) -> None:
        pod_labels = pod["metadata"].get("labels") or {}
        # An eviction also waits for the annotation that reports a checkpoint.
        has_checkpoint = labels.CHECKPOINT in (pod["metadata"].get("annotations") or {})
        if (
            (event == "DELETED" or is_deleted(pod) or has_checkpoint)
            and labels.LEASE in pod_labels
            and labels.AGENT in pod_labels
        ):
            self.controller.add((pod_labels[labels.AGENT], pod_labels[labels.LEASE]))

    def _host_node_changed(self, event: EventType, node: Object) -> None:
        name = node["metadata"]["name"]
        room = None if event == "DELETED" else nodes.machine_room(node)
        if self._rooms.get(name) != room:
            self._rooms[name] = room
            for lease in self._host[GPU_LEASE].items():
                if lease["spec"]["node"] == name:
                    self._host_changed("MODIFIED", lease)

    def _host_slice_changed(self, event: EventType, slice_: Object) -> None:
        for lease in self._leases_on[slice_["spec"].get("nodeName", "")]:
            self._host_changed("MODIFIED", lease)

    def _mirror_changed(self, plane: str, event: EventType, obj: Object) -> None:
        self.controller.add((plane, obj["metadata"]["name"]))

    def _pod_changed(self, plane: str, event: EventType, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if node:
            self.controller.add((plane, node))

    def _opened(self, plane: str) -> None:
        for lease in self._host[GPU_LEASE].items():
            if lease["spec"]["agent"] == plane:
                self.controller.add((plane, lease["metadata"]["name"]))

    async def reconcile(self, key: Key) -> float | None:
        """Bring the plane's view of one lease up to date; return the delay until the next run."""
        agent, name = key
        plane = self._planes.get(agent)
        if plane is None or host_node_of(name):
            return None  # an offered host node, not a lease
        lease = self._host[GPU_LEASE].get(host_namespace(agent), name)
        mirror = next((m for m in plane[GPU_LEASE].items() if m["metadata"]["name"] == name), None)
        if lease is None or (lease.get("status") or {}).get("phase") == Phase.RELEASED:
            await self._remove(plane, name, mirror)
            return None
        if not lease.get("status"):
            return None  # the exchange writes it next
        await self._show(plane, lease, mirror)
        if self._host[NODE].get(None, lease["spec"]["node"]) is None:
            await self._node_lost(plane, lease)
        elif mirror is not None and mirror["metadata"].get("deletionTimestamp"):
            return await self._release(plane, lease, mirror)
        elif lease["status"]["phase"] == Phase.DRAINING:
            return await self._evict(plane, lease, lease["status"].get("reason", ""))
        else:
            await self._follow_evictions(plane, lease)
        return None

    async def _show(self, plane: PlaneCache, lease: Object, mirror: Object | None) -> None:
        """Create or update the lease's mirror, and once its devices are free, its node."""
        name = lease["metadata"]["name"]
        if mirror is None:
            with suppress(AlreadyExists):
                mirror = await plane.client.create(
                    GPU_LEASE,
                    {
                        **nodes.mirror(lease, self._namespace(lease)),
                        "status": lease["status"],
                    },
                    self._namespace(lease),
                    with_status=True,
                )
        if mirror is not None and _is_news(mirror.get("status") or {}, lease["status"]):
            await plane.client.patch(
                GPU_LEASE,
                name,
                {"status": lease["status"]},
                mirror["metadata"]["namespace"],
                subresource="status",
            )
        if not lease["status"].get("ready", True):
            return
        node = plane[NODE].get(None, name)
        is_shown = node is not None and node["metadata"]["uid"] in self._sliced
        claim = None if is_shown else await self._companions.ensure_claim(lease)
        if isinstance(claim, DevicesTaken):
            await self._recorder.record(
                plane.client, mirror or lease, "DeviceTaken", claim.message, type="Warning"
            )
        else:
            await self._show_node(plane, lease, claim)

    async def _show_node(self, plane: PlaneCache, lease: Object, claim: Object | None) -> None:
        """
        Create or update the Node and ResourceSlices of a lease; `claim` holds its companion
        devices.
        """
        name = lease["metadata"]["name"]
        client = plane.client
        node = plane[NODE].get(None, name)
        host_node = self._host[NODE].get(None, lease["spec"]["node"])
        devices = nodes.devices_shown(lease, self._slices_of[lease["spec"]["node"]])
        before, now = links.read(node) if node is not None else {}, links.links_of(devices)
        problems = links.problems(before, now)
        status = nodes.node_status(
            lease,
            host_node,
            self._gpus_of(lease),
            degraded=problems,
            now=rfc3339(self._clock.now()),
        )
        if node is None:
            with suppress(AlreadyExists):
                node = await client.create(
                    NODE, {**nodes.node(lease, host_node, devices), "status": status}
                )
        if node is None:
            return
        if node["metadata"]["uid"] not in self._sliced:
            # The node owns its slices, so that they are deleted with it.
            with suppress(AlreadyExists):
                host_slices = self._host[RESOURCE_SLICE].items()
                for slice_ in companions.slices(lease, claim, host_slices, node) if claim else ():
                    with suppress(AlreadyExists):
                        await client.create(RESOURCE_SLICE, slice_)
                await client.create(RESOURCE_SLICE, nodes.resource_slice(lease, host_slices, node))
                self._links[node["metadata"]["uid"]] = now
            self._sliced.add(node["metadata"]["uid"])
        # A missing device shows no links: the exchange reports missing devices.
        if self._links.get(node["metadata"]["uid"]) != now and len(now) == len(devices):
            await self._show_links(plane, lease, node, problems)
            self._links[node["metadata"]["uid"]] = now
        taints = nodes.taints(lease)
        if (node["spec"].get("taints") or []) != taints:
            node = await client.patch(NODE, name, {"spec": {"taints": taints or None}})
        current = node.get("status") or {}
        if _conditions(status) != _conditions(current) or status["capacity"] != current.get(
            "capacity"
        ):
            await client.patch(NODE, name, {"status": status}, subresource="status")
            if lease["status"]["phase"] == Phase.DRAINING:
                await self._recorder.record(
                    client, node, "ReclaimNotice", notice.words(lease), type="Warning"
                )

    async def _show_links(
        self, plane: PlaneCache, lease: Object, node: Object, problems: list[str]
    ) -> None:
        """
        Update the devices in the plane's slice, and report changed links to the lease's node and
        pods.
        """
        name = lease["metadata"]["name"]
        slices = self._slices_of[lease["spec"]["node"]]
        spec = nodes.resource_slice(lease, slices, node)["spec"]
        current = (await plane.client.get(RESOURCE_SLICE, name))["spec"]
        if links.differ(current, spec):
            pool = {**current["pool"], "generation": current["pool"]["generation"] + 1}
            change = {"spec": {"devices": spec["devices"], "pool": pool}}
            await plane.client.patch(RESOURCE_SLICE, name, change)
        changed = await mark_links(self._host.client, lease, problems, now=self._clock.now())
        if changed:
            reason = LINK_DEGRADED if problems else "LinkRestored"
            message = "; ".join(problems) or "the links of its devices are restored"
            for about in (node, *self._live_pods(plane, lease)):
                await self._recorder.record(
                    plane.client, about, reason, message, type="Warning" if problems else "Normal"
                )

    def _gpus_of(self, lease: Object) -> int:
        """Return how many whole GPUs the lease's machine has, leased or not."""
        driver = lease["spec"]["devices"][0]["driver"]
        return sum(
            is_whole_gpu(device)
            for slice_ in self._slices_of[lease["spec"]["node"]]
            if slice_["spec"]["driver"] == driver
            for device in slice_["spec"].get("devices") or ()
        )

    def _namespace(self, lease: Object) -> str:
        """The plane's namespace in which the lease's mirror is."""
        if namespace := lease["spec"].get("planeNamespace"):
            return str(namespace)
        # An earlier version did not store the namespace: read it from the bid while that exists.
        reference = lease["spec"]["bid"]
        bid = self._host[BID].get(reference["namespace"], reference["name"])
        plane_pod = origin(bid) if bid is not None else None
        return plane_pod[0] if plane_pod else "default"

    async def _node_lost(self, plane: PlaneCache, lease: Object) -> None:
        """
        Delete the pods and the lease of a host node that is gone: no kubelet is left to end them.
        The pods bid again.
        """
        name = lease["metadata"]["name"]
        # The plane's pods first: once the host's are gone, theirs would be removed unexplained.
        message = f"node {lease['spec']['node']} is gone, with all that ran on it"
        for pod in self._live_pods(plane, lease):
            if not is_deleted(pod):
                await self._announce_eviction(plane, pod, "NodeLost", message)
        for pod in self._live_host_pods(lease):
            await _delete_pod(self._host.client, pod, 0)
        for pod in self._live_pods(plane, lease):
            await _delete_pod(plane.client, pod, 0)
        await self._release_gang(plane, lease)
        if not is_deleted(lease):
            with suppress(NotFound):
                await self._host.client.delete(GPU_LEASE, name, lease["metadata"]["namespace"])

    async def _follow_evictions(self, plane: PlaneCache, lease: Object) -> None:
        """
        Evict from the plane each pod that the node's owner evicts on the host (`kubectl drain`),
        with the same grace; the pod bids again for another node.
        """
        evicted = {
            (pod["metadata"].get("annotations") or {}).get(labels.PLANE_UID): pod
            for pod in self._live_host_pods(lease)
            if is_deleted(pod)
        }
        for pod in self._live_pods(plane, lease):
            host_pod = evicted.get(pod["metadata"]["uid"])
            if host_pod is None or is_deleted(pod):
                continue
            message = f"the owner of node {lease['spec']['node']} evicted the pod"
            await self._announce_eviction(plane, pod, "EvictedFromNode", message)
            seconds = parse_rfc3339(host_pod["metadata"]["deletionTimestamp"]) - self._clock.now()
            await _delete_pod(plane.client, pod, max(1, int(seconds)))
            await self._release_gang(plane, lease)

    async def _announce_eviction(
        self, plane: PlaneCache, pod: Object, reason: str, message: str
    ) -> None:
        """
        Record why a pod is evicted, and save a bare pod's template so that it is created again.
        """
        await self._recorder.record(plane.client, pod, reason, message, type="Warning")
        await self._add_disruption_condition(plane, pod, message)
        await self._save_template(plane, pod)

    async def _release(self, plane: PlaneCache, lease: Object, mirror: Object) -> float | None:
        """Evict the pods of a lease whose mirror was deleted, then give its devices back."""
        await self._release_gang(plane, lease)
        agent = self._host[AGENT].get(None, plane.name)
        suspended = agent is not None and bool(agent["spec"].get("suspended"))
        requested_at = parse_rfc3339(mirror["metadata"]["deletionTimestamp"])
        reason = "Suspended" if suspended else "Released"
        wait = await self._evict(plane, lease, reason, requested_at=requested_at)
        if wait is not None:
            return wait
        in_use = self._live_pods(plane, lease) or self._live_host_pods(lease)
        if in_use or is_deleted(lease):
            return None
        name, namespace = lease["metadata"]["name"], lease["metadata"]["namespace"]
        # Read from the host, not the cache, which may lack a new pod: once given back, the
        # devices may be sold at once.
        listing = await self._host.client.list(POD, namespace, labels=f"{labels.LEASE}={name}")
        if not any(_uses_devices(pod) for pod in listing.items):
            with suppress(NotFound):
                await self._host.client.delete(GPU_LEASE, name, namespace)
        return None

    async def _release_gang(self, plane: PlaneCache, lease: Object) -> None:
        """Release the other leases of the same bid: the blocks of a gang end together."""
        if lease["spec"].get("parts", 1) == 1:
            return
        for other in plane[GPU_LEASE].items():
            is_same_gang = other["spec"]["bid"]["uid"] == lease["spec"]["bid"]["uid"]
            if is_same_gang and not is_deleted(other):
                metadata = other["metadata"]
                with suppress(NotFound):
                    await plane.client.delete(GPU_LEASE, metadata["name"], metadata["namespace"])

    async def _evict(
        self, plane: PlaneCache, lease: Object, reason: str, *, requested_at: float | None = None
    ) -> float | None:
        """
        Evict the lease's pods. Return the seconds after which to look again if a pod still writes
        a checkpoint.

        `requested_at`: when the agent or the node's owner requested the end.
        """
        waits: list[float] = []
        for pod in self._live_pods(plane, lease):
            if not is_deleted(pod):
                noticed = lease
                if requested_at is not None:
                    until = rfc3339(requested_at + notice.RELEASE_SECONDS)
                    noticed = notice.of_release(
                        lease, pod, reason=reason, asked=rfc3339(requested_at), until=until
                    )
                wait = await self._give_notice(plane, noticed, pod, reason)
                if wait > 0:
                    waits.append(wait)
                    continue
                await self._save_template(plane, pod)
            elif not self._outlasts(pod, lease):
                continue
            # Read again: a pod that ended by itself meanwhile keeps its final status.
            latest = plane[POD].get(pod["metadata"]["namespace"], pod["metadata"]["name"])
            if latest is None or not is_live_on(latest, lease["metadata"]["name"]):
                continue
            await _delete_pod(plane.client, pod, self._grace(lease, pod))
        for pod in self._live_host_pods(lease):
            # Its original may be gone, or was deleted with more grace than the notice has.
            if is_deleted(pod) and self._outlasts(pod, lease):
                await _delete_pod(self._host.client, pod, self._grace(lease, pod))
        return min(waits, default=None)

    async def _give_notice(
        self, plane: PlaneCache, lease: Object, pod: Object, reason: str
    ) -> float:
        """
        Announce the eviction to the pod; return the seconds that it still has for its checkpoint.
        """
        message = notice.words(lease)
        await self._recorder.record(plane.client, pod, reason, message, type="Warning")
        await self._add_disruption_condition(plane, pod, message)
        if not notice.is_given(lease):
            return 0.0
        metadata, annotation = pod["metadata"], notice.annotation(lease)
        if (metadata.get("annotations") or {}).get(labels.NOTICE) != annotation:
            note = {
                "metadata": {"uid": metadata["uid"], "annotations": {labels.NOTICE: annotation}}
            }
            with suppress(NotFound):
                await plane.client.patch(POD, metadata["name"], note, metadata["namespace"])
        status = lease["status"]
        return notice.checkpoint_wait(
            pod,
            self._host[POD].get(
                host_namespace(plane.name), host_name(metadata["namespace"], metadata["name"])
            ),
            now=self._clock.now(),
            given=parse_rfc3339(status.get("noticeAt") or status["reclaimAt"]),
            end=parse_rfc3339(status["reclaimAt"]),
        )

    async def _add_disruption_condition(self, plane: PlaneCache, pod: Object, message: str) -> None:
        """Set the condition DisruptionTarget: a Job does not count such a pod as failed."""
        conditions = list((pod.get("status") or {}).get("conditions") or ())
        if any(condition["type"] == "DisruptionTarget" for condition in conditions):
            return
        marked = [*conditions, notice.condition(message, rfc3339(self._clock.now()))]
        metadata = pod["metadata"]
        with suppress(NotFound):
            await plane.client.patch(
                POD,
                metadata["name"],
                {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": marked}},
                metadata["namespace"],
                subresource="status",
            )

    async def _save_template(self, plane: PlaneCache, pod: Object) -> None:
        """
        Save a bare pod as a PodTemplate before it goes: no other controller would create it again.
        """
        if requeue.is_bare(pod):
            with suppress(AlreadyExists):
                await plane.client.create(
                    POD_TEMPLATE, requeue.template(pod), pod["metadata"]["namespace"]
                )

    def _outlasts(self, pod: Object, lease: Object) -> bool:
        """Return True if a pod that is being deleted may take longer than the lease's notice."""
        metadata = pod["metadata"]
        grace = metadata.get("deletionGracePeriodSeconds", 0)
        reclaim_at = lease["status"].get("reclaimAt")
        return bool(
            reclaim_at
            and parse_rfc3339(metadata["deletionTimestamp"]) > parse_rfc3339(reclaim_at)
            and grace > self._grace(lease, pod)
        )

    def _grace(self, lease: Object, pod: Object) -> int:
        """
        The seconds that a pod has to end: what is left of the notice, else its own grace period.
        """
        reclaim_at = lease["status"].get("reclaimAt")
        if reclaim_at:
            return max(1, int(parse_rfc3339(reclaim_at) - self._clock.now()))
        grace: int = pod["spec"].get("terminationGracePeriodSeconds", 30)
        return grace

    def _live_pods(self, plane: PlaneCache, lease: Object) -> list[Object]:
        """The plane's pods that run on the lease."""
        name = lease["metadata"]["name"]
        return [pod for pod in plane[POD].items() if is_live_on(pod, name)]

    def _live_host_pods(self, lease: Object) -> list[Object]:
        """The host pods that use the devices, even if their originals were deleted by force."""
        return [pod for pod in self._by_lease[lease["metadata"]["name"]] if _uses_devices(pod)]

    async def _remove(self, plane: PlaneCache, name: str, mirror: Object | None) -> None:
        """Remove a lease from the plane: its pods, node and mirror."""
        client = plane.client
        # A pod cannot outlive its node; on the host it is already gone. It may also have
        # been bound while the lease was ending: then it never ran, and bids again.
        for pod in plane[POD].items():
            if is_live_on(pod, name):
                if not is_deleted(pod):
                    await self._save_template(plane, pod)
                await _delete_pod(client, pod, 0)
        if (node := plane[NODE].get(None, name)) is not None:
            self._sliced.discard(node["metadata"]["uid"])
            self._links.pop(node["metadata"]["uid"], None)
            with suppress(NotFound):
                await client.delete(NODE, name)
        if mirror is not None:
            metadata = mirror["metadata"]
            with suppress(NotFound):
                if not metadata.get("deletionTimestamp"):
                    await client.delete(GPU_LEASE, name, metadata["namespace"])
                await client.patch(
                    GPU_LEASE, name, {"metadata": {"finalizers": None}}, metadata["namespace"]
                )


def _uses_devices(host_pod: Object) -> bool:
    """Return True for a host pod that has not finished."""
    return phase_of(host_pod) not in ("Succeeded", "Failed")


async def _delete_pod(client: KubeClient, pod: Object, grace: int) -> None:
    """Delete the pod with that grace, unless it is gone."""
    metadata = pod["metadata"]
    with suppress(NotFound):
        await client.delete(
            POD,
            metadata["name"],
            metadata["namespace"],
            grace_seconds=grace,
            uid=metadata["uid"],
        )


def _is_news(current: Object, status: Object) -> bool:
    """
    Return True if the mirror's status must be written. That a pending lease is claimed is written
    together with the change to Active that follows.
    """
    if current.get("phase") != Phase.PENDING or status["phase"] != Phase.PENDING:
        return current != status
    return any(current.get(key) != status.get(key) for key in {*current, *status} - {"conditions"})


def _conditions(status: Object) -> list[tuple[str, str, str]]:
    """The parts of the conditions that matter for a comparison."""
    return [(c["type"], c["status"], c.get("message", "")) for c in status.get("conditions") or ()]
