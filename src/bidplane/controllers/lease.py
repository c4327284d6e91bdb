"""
Leases are nodes: carries each GPULease on the host into its agent's plane.

While a lease is held, the plane has its mirror, and once its devices are free, a Node
and a ResourceSlice. A notice is a taint, a condition and an Event, and evicts the pods
with the time that is left. Deleting the mirror asks for release; the host's lease is
deleted only when no pod uses the devices. When the host's lease is gone, so is all of it.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, NODE, POD, POD_TEMPLATE, RESOURCE_SLICE
from bidplane.api.lease import Phase
from bidplane.controllers.beside import Beside, Missed
from bidplane.core import beside, leasenodes, notice, requeue
from bidplane.core.scheduling import is_deleted, is_live_on, phase_of
from bidplane.core.translation import host_name, lease_label, origin
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import Client, EventType, Object
from bidplane.machinery.clock import Clock, parse_rfc3339, rfc3339
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.index import Index
from bidplane.machinery.planes import PlaneCache, PlaneCaches

Key = tuple[str, str]  # agent, lease


class LeaseController:
    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-lease", clock=clock)
        self._by_lease = Index(host[POD], lease_label)
        self._beside = Beside(host, clock=clock)
        # Nodes of which it is known that they have their slice. Forgotten by a restart, which
        # then looks once more.
        self._sliced: set[str] = set()
        self.controller: Controller[Key] = Controller("lease", self.reconcile, workers=WORKERS)
        host[GPU_LEASE].on_change(self._host_changed)
        host[POD].on_change(self._host_pod_changed)
        host[NODE].on_change(self._host_node_changed)
        planes.on_change(GPU_LEASE, self._mirror_changed)
        planes.on_change(NODE, self._mirror_changed)
        planes.on_change(POD, self._pod_changed)
        planes.on_open(self._opened)

    def _host_changed(self, event: EventType, lease: Object) -> None:
        self.controller.add((lease["spec"]["agent"], lease["metadata"]["name"]))

    def _host_pod_changed(self, event: EventType, pod: Object) -> None:
        marks = pod["metadata"].get("labels") or {}
        # A checkpoint that was taken is waited for, too.
        told = labels.CHECKPOINT in (pod["metadata"].get("annotations") or {})
        if (
            (event == "DELETED" or is_deleted(pod) or told)
            and labels.LEASE in marks
            and labels.AGENT in marks
        ):
            self.controller.add((marks[labels.AGENT], marks[labels.LEASE]))

    def _host_node_changed(self, event: EventType, node: Object) -> None:
        if event == "DELETED":
            for lease in self._host[GPU_LEASE].items():
                if lease["spec"]["node"] == node["metadata"]["name"]:
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
        agent, name = key
        plane = self._planes.get(agent)
        if plane is None:
            return None
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
        name = lease["metadata"]["name"]
        if mirror is None:
            with suppress(AlreadyExists):
                mirror = await plane.client.create(
                    GPU_LEASE,
                    {
                        **leasenodes.mirror(lease, self._namespace(lease)),
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
        shown = node is not None and node["metadata"]["uid"] in self._sliced
        held = None if shown else await self._beside.hold(lease)
        if isinstance(held, Missed):
            await self._recorder.record(
                plane.client, mirror or lease, "DeviceTaken", held.message, type="Warning"
            )
        else:
            await self._show_node(plane, lease, held)

    async def _show_node(self, plane: PlaneCache, lease: Object, held: Object | None) -> None:
        name = lease["metadata"]["name"]
        client = plane.client
        node = plane[NODE].get(None, name)
        status = leasenodes.node_status(lease, now=rfc3339(self._clock.now()))
        if node is None:
            host_node = self._host[NODE].get(None, lease["spec"]["node"])
            with suppress(AlreadyExists):
                node = await client.create(
                    NODE, {**leasenodes.node(lease, host_node), "status": status}
                )
        if node is None:
            return
        if node["metadata"]["uid"] not in self._sliced:
            # The node owns its slice, so that one without the other is never left behind.
            with suppress(AlreadyExists):
                host_slices = self._host[RESOURCE_SLICE].items()
                for slice_ in beside.slices(lease, held, host_slices, node) if held else ():
                    with suppress(AlreadyExists):
                        await client.create(RESOURCE_SLICE, slice_)
                await client.create(
                    RESOURCE_SLICE, leasenodes.resource_slice(lease, host_slices, node)
                )
            self._sliced.add(node["metadata"]["uid"])
        taints = leasenodes.taints(lease)
        if (node["spec"].get("taints") or []) != taints:
            node = await client.patch(NODE, name, {"spec": {"taints": taints or None}})
        if _conditions(status) != _conditions(node.get("status") or {}):
            await client.patch(NODE, name, {"status": status}, subresource="status")
            if lease["status"]["phase"] == Phase.DRAINING:
                await self._recorder.record(
                    client, node, "ReclaimNotice", notice.words(lease), type="Warning"
                )

    def _namespace(self, lease: Object) -> str:
        reference = lease["spec"]["bid"]
        bid = self._host[BID].get(reference["namespace"], reference["name"])
        came_from = origin(bid) if bid is not None else None
        return came_from[0] if came_from else "default"

    async def _node_lost(self, plane: PlaneCache, lease: Object) -> None:
        """No kubelet is left to end anything: what ran there is gone, and bids again."""
        name = lease["metadata"]["name"]
        # Said of the plane's pods first: once the host's are gone, theirs are lost without a word.
        words = f"the node {lease['spec']['node']} is gone, and what ran on it"
        for pod in self._live_pods(plane, lease):
            if not is_deleted(pod):
                await self._take_leave(plane, pod, "NodeLost", words)
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
        What its owner takes off the node (`kubectl drain`) leaves the plane, too, with the grace
        it was given, and bids again for another place.
        """
        going = {
            (pod["metadata"].get("annotations") or {}).get(labels.PLANE_UID): pod
            for pod in self._live_host_pods(lease)
            if is_deleted(pod)
        }
        for pod in self._live_pods(plane, lease):
            there = going.get(pod["metadata"]["uid"])
            if there is None or is_deleted(pod):
                continue
            words = f"the owner of node {lease['spec']['node']} takes it off that node"
            await self._take_leave(plane, pod, "EvictedFromNode", words)
            left = parse_rfc3339(there["metadata"]["deletionTimestamp"]) - self._clock.now()
            await _delete_pod(plane.client, pod, max(1, int(left)))
            await self._release_gang(plane, lease)

    async def _take_leave(self, plane: PlaneCache, pod: Object, reason: str, words: str) -> None:
        """Before a pod goes by nobody's fault in its plane: it is told why, and comes back."""
        await self._recorder.record(plane.client, pod, reason, words, type="Warning")
        await self._mark(plane, pod, words)
        await self._keep_likeness(plane, pod)

    async def _release(self, plane: PlaneCache, lease: Object, mirror: Object) -> float | None:
        """The mirror was deleted: end what runs, then give the devices back."""
        await self._release_gang(plane, lease)
        agent = self._host[AGENT].get(None, plane.name)
        suspended = agent is not None and bool(agent["spec"].get("suspended"))
        asked = parse_rfc3339(mirror["metadata"]["deletionTimestamp"])
        reason = "Suspended" if suspended else "Released"
        wait = await self._evict(plane, lease, reason, asked=asked)
        if wait is not None:
            return wait
        in_use = self._live_pods(plane, lease) or self._live_host_pods(lease)
        if in_use or is_deleted(lease):
            return None
        name, namespace = lease["metadata"]["name"], lease["metadata"]["namespace"]
        # Asked of the host itself: given back, the devices may be sold at once, and a cache
        # may not have heard yet of a pod that was only just made.
        there = await self._host.client.list(POD, namespace, labels=f"{labels.LEASE}={name}")
        if not any(_uses_devices(pod) for pod in there.items):
            with suppress(NotFound):
                await self._host.client.delete(GPU_LEASE, name, namespace)
        return None

    async def _release_gang(self, plane: PlaneCache, lease: Object) -> None:
        """A gang ends as it began, together: who lets go of one block lets go of all."""
        if lease["spec"].get("parts", 1) == 1:
            return
        for other in plane[GPU_LEASE].items():
            same = other["spec"]["bid"]["uid"] == lease["spec"]["bid"]["uid"]
            if same and not is_deleted(other):
                metadata = other["metadata"]
                with suppress(NotFound):
                    await plane.client.delete(GPU_LEASE, metadata["name"], metadata["namespace"])

    async def _evict(
        self, plane: PlaneCache, lease: Object, reason: str, *, asked: float | None = None
    ) -> float | None:
        """
        End what runs on the lease; seconds after which to look again, if a pod still saves.
        `asked`: when its agent or its owner wanted that.
        """
        waits: list[float] = []
        for pod in self._live_pods(plane, lease):
            if not is_deleted(pod):
                told = lease
                if asked is not None:
                    until = rfc3339(asked + notice.RELEASE_SECONDS)
                    told = notice.of_release(
                        lease, pod, reason=reason, asked=rfc3339(asked), until=until
                    )
                wait = await self._give_notice(plane, told, pod, reason)
                if wait > 0:
                    waits.append(wait)
                    continue
                await self._keep_likeness(plane, pod)
            elif not self._outlasts(pod, lease):
                continue
            # Looked at again: what ended by itself meanwhile keeps its end to show.
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
        """Tell the pod; seconds for which it may still take its checkpoint."""
        message = notice.words(lease)
        await self._recorder.record(plane.client, pod, reason, message, type="Warning")
        await self._mark(plane, pod, message)
        if not notice.is_given(lease):
            return 0.0
        metadata, said = pod["metadata"], notice.annotation(lease)
        if (metadata.get("annotations") or {}).get(labels.NOTICE) != said:
            note = {"metadata": {"uid": metadata["uid"], "annotations": {labels.NOTICE: said}}}
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

    async def _mark(self, plane: PlaneCache, pod: Object, message: str) -> None:
        """DisruptionTarget: a Job does not count such a pod as failed."""
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

    async def _keep_likeness(self, plane: PlaneCache, pod: Object) -> None:
        """Nobody else would bring a bare pod back: kept before it goes."""
        if requeue.is_bare(pod):
            with suppress(AlreadyExists):
                await plane.client.create(
                    POD_TEMPLATE, requeue.template(pod), pod["metadata"]["namespace"]
                )

    def _outlasts(self, pod: Object, lease: Object) -> bool:
        """Whether a pod that is being deleted may take longer than the lease's notice."""
        metadata = pod["metadata"]
        asked = metadata.get("deletionGracePeriodSeconds", 0)
        reclaim_at = lease["status"].get("reclaimAt")
        return bool(
            reclaim_at
            and parse_rfc3339(metadata["deletionTimestamp"]) > parse_rfc3339(reclaim_at)
            and asked > self._grace(lease, pod)
        )

    def _grace(self, lease: Object, pod: Object) -> int:
        reclaim_at = lease["status"].get("reclaimAt")
        if reclaim_at:
            return max(1, int(parse_rfc3339(reclaim_at) - self._clock.now()))
        grace: int = pod["spec"].get("terminationGracePeriodSeconds", 30)
        return grace

    def _live_pods(self, plane: PlaneCache, lease: Object) -> list[Object]:
        name = lease["metadata"]["name"]
        return [pod for pod in plane[POD].items() if is_live_on(pod, name)]

    def _live_host_pods(self, lease: Object) -> list[Object]:
        """What really uses the devices, though its original may have been deleted by force."""
        return [pod for pod in self._by_lease[lease["metadata"]["name"]] if _uses_devices(pod)]

    async def _remove(self, plane: PlaneCache, name: str, mirror: Object | None) -> None:
        client = plane.client
        # A pod cannot outlive its node; on the host it is already gone. It may also have
        # been bound while the lease was ending: then it never ran, and bids again.
        for pod in plane[POD].items():
            if is_live_on(pod, name):
                if not is_deleted(pod):
                    await self._keep_likeness(plane, pod)
                await _delete_pod(client, pod, 0)
        if (node := plane[NODE].get(None, name)) is not None:
            self._sliced.discard(node["metadata"]["uid"])
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
    return phase_of(host_pod) not in ("Succeeded", "Failed")


async def _delete_pod(client: Client, pod: Object, grace: int) -> None:
    metadata = pod["metadata"]
    with suppress(NotFound):
        await client.delete(
            POD,
            metadata["name"],
            metadata["namespace"],
            grace_seconds=grace,
            uid=metadata["uid"],
        )


def _is_news(shown: Object, status: Object) -> bool:
    """That a lease is claimed is told with what follows from it: that it is active."""
    if shown.get("phase") != Phase.PENDING or status["phase"] != Phase.PENDING:
        return shown != status
    return any(shown.get(key) != status.get(key) for key in {*shown, *status} - {"conditions"})


def _conditions(status: Object) -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c.get("message", "")) for c in status.get("conditions") or ()]
