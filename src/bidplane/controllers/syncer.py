"""
The syncer: copies an agent's bids and bound pods to the host, and their status back.

The plane holds the desired state, the host the actual one. A host object whose original is gone,
or has another uid, is removed. Every step can be repeated.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import (
    AGENT,
    BID,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    EVENT,
    GPU_LEASE,
    NODE,
    POD,
    SERVICE,
    VOLUME_CLAIM,
    Kind,
)
from bidplane.api.lease import Phase
from bidplane.api.objects import is_deleted, phase_of
from bidplane.api.times import parse_rfc3339
from bidplane.controllers import debugging, pinning
from bidplane.controllers.claiming import mark_claimed, mark_up
from bidplane.controllers.copies import LOOK_SECONDS, Copies, Missing, volume_claim_names
from bidplane.core.devices import bindingconditions
from bidplane.core.hosting import hostnames, hostpods, translation
from bidplane.core.hosting.translation import lease_label
from bidplane.core.nodes import offers
from bidplane.core.nodes.offers import host_node_of
from bidplane.core.scheduling import wants_gpus
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.index import Index
from bidplane.machinery.planes import PlaneCache, PlaneCaches

_PREPARING_SECONDS = 1.0  # between two looks at devices that are being prepared

Key = tuple[str, Kind, str, str]  # agent, kind, and the plane's namespace and name


class SyncerController:
    """Copies bids and bound pods from planes to the host, and their status and Events back."""

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-syncer", clock=clock)
        self._copies = Copies(host.client, clock=clock)
        self._offering = asyncio.Lock()
        self._by_lease = Index(host[POD], lease_label)
        self.controller: Controller[Key] = Controller("syncer", self.reconcile, workers=WORKERS)
        for kind in (BID, POD):
            planes.on_change(kind, self._plane_handler(kind))
            host[kind].on_change(self._host_handler(kind))
        for kind in (POD, VOLUME_CLAIM):
            planes.on_change(kind, self._schedule_refresh)
        for kind in (SERVICE, ENDPOINT_SLICE):
            planes.on_change(kind, self._service_changed)
        host[EVENT].on_change(self._event_happened)
        host[GPU_LEASE].on_change(self._lease_changed)
        host[AGENT].on_change(self._agent_changed)
        planes.on_open(self._opened)

    def _schedule_refresh(self, plane: str, event: EventType, obj: Object) -> None:
        """
        Refresh the plane's copies after a while: a changed pod or volume claim may need other
        copies.
        """
        self.controller.add_after(_copies_key(plane), LOOK_SECONDS)

    def _service_changed(self, plane: str, event: EventType, obj: Object) -> None:
        """Reconcile the pods of a Service's namespace: their hosts file lists its endpoints."""
        cache = self._planes.awake(plane)
        namespace = obj["metadata"]["namespace"]
        for pod in cache[POD].in_namespace(namespace) if cache is not None else ():
            if pod["spec"].get("nodeName"):
                self.controller.add((plane, POD, namespace, pod["metadata"]["name"]))

    def _agent_changed(self, event: EventType, agent: Object) -> None:
        """Reconcile the agent's bids: a suspended agent has none on the host."""
        if event == "DELETED":
            self._copies.forget(agent["metadata"]["name"])
        plane = self._planes.awake(agent["metadata"]["name"])
        for bid in plane[BID].items() if plane is not None else ():
            metadata = bid["metadata"]
            self.controller.add(
                (agent["metadata"]["name"], BID, metadata["namespace"], metadata["name"])
            )

    def _is_suspended(self, name: str) -> bool:
        """Return True if that agent is suspended."""
        agent = self._host[AGENT].get(None, name)
        return agent is not None and bool(agent["spec"].get("suspended"))

    def _plane_handler(self, kind: Kind) -> Any:
        """A handler that reconciles a changed object of a plane."""

        def changed(plane: str, event: EventType, obj: Object) -> None:
            metadata = obj["metadata"]
            self.controller.add((plane, kind, metadata["namespace"], metadata["name"]))

        return changed

    def _host_handler(self, kind: Kind) -> Any:
        """A handler that reconciles the original of a changed host object."""

        def changed(event: EventType, obj: Object) -> None:
            self._add_original(kind, obj)

        return changed

    def _add_original(self, kind: Kind, host_object: Object) -> None:
        """Reconcile the plane's object of which this host object is a copy."""
        original = translation.origin(host_object)
        agent = (host_object["metadata"].get("labels") or {}).get(labels.AGENT)
        if original is not None and agent is not None:
            self.controller.add((agent, kind, *original))

    def _lease_changed(self, event: EventType, lease: Object) -> None:
        """
        Reconcile the pods of a changed lease, also those bound before the lease reached our cache.
        """
        for pod in self._by_lease[lease["metadata"]["name"]]:
            self._add_original(POD, pod)
        plane = self._planes.get(lease["spec"]["agent"])
        if plane is None:
            return
        for pod in plane[POD].items():
            if pod["spec"].get("nodeName") == lease["metadata"]["name"]:
                metadata = pod["metadata"]
                self.controller.add((plane.name, POD, metadata["namespace"], metadata["name"]))

    def _event_happened(self, event: EventType, obj: Object) -> None:
        """Reconcile an Event about a host pod."""
        about = obj.get("involvedObject") or {}
        if event != "DELETED" and about.get("kind") == "Pod":
            metadata = obj["metadata"]
            self.controller.add(
                (metadata["namespace"], EVENT, metadata["namespace"], metadata["name"])
            )

    def _opened(self, plane: str) -> None:
        """Reconcile all copies of a plane: an original may have gone while we did not run."""
        for kind in (BID, POD):
            for obj in self._host[kind].items():
                if (obj["metadata"].get("labels") or {}).get(labels.AGENT) == plane:
                    self._add_original(kind, obj)

    async def reconcile(self, key: Key) -> float | None:
        """
        Make one bid, pod, Event or set of copies equal on both sides; return the delay until the
        next run.
        """
        agent, kind, namespace, name = key
        if kind == EVENT:
            await self._sync_event(namespace, name)
            return None
        if kind == CONFIG_MAP:
            # Nothing changes in a plane that is not loaded.
            awake = self._planes.awake(agent)
            return await self._copies.refresh(awake) if awake is not None else None
        plane = self._planes.get(agent)
        if plane is None:
            return None
        original = plane[kind].get(namespace, name)
        copy = self._host[kind].get(host_namespace(agent), translation.host_name(namespace, name))
        if copy is not None and not _is_copy_of(copy, original):
            await self._delete_copy(kind, copy)
        elif kind == BID and self._is_suspended(agent):
            if copy is not None:
                await self._delete_copy(kind, copy)
        elif original is not None and kind == BID:
            await self._sync_bid(plane, original, copy)
        elif original is not None:
            await self._sync_pod(plane, original, copy)
        return None

    async def _delete_copy(self, kind: Kind, copy: Object) -> None:
        """Delete a copy on the host, unless it is being deleted."""
        metadata = copy["metadata"]
        if not is_deleted(copy):
            with suppress(NotFound):
                await self._host.client.delete(
                    kind, metadata["name"], metadata["namespace"], uid=metadata["uid"]
                )

    async def _sync_bid(self, plane: PlaneCache, bid: Object, copy: Object | None) -> None:
        """Copy the bid's spec to the host and its status back."""
        metadata = bid["metadata"]
        if copy is None:
            if not is_deleted(bid):
                host_bid = translation.host_bid(plane.name, bid)
                await self._host.client.create(BID, host_bid, host_bid["metadata"]["namespace"])
            return
        if copy["spec"] != bid["spec"]:
            dropped = dict.fromkeys(copy["spec"].keys() - bid["spec"].keys())
            await self._host.client.patch(
                BID,
                copy["metadata"]["name"],
                {"spec": {**dropped, **bid["spec"]}},
                copy["metadata"]["namespace"],
            )
        status = copy.get("status")
        if status and bid.get("status") != status:
            with suppress(NotFound):
                await plane.client.patch(
                    BID,
                    metadata["name"],
                    {"status": status},
                    metadata["namespace"],
                    subresource="status",
                )

    async def _sync_pod(self, plane: PlaneCache, pod: Object, copy: Object | None) -> None:
        """Bring the pod and its host pod to the same state."""
        if copy is not None:
            if is_deleted(pod):
                await self._delete_host_pod(pod, copy)
            await self._copy_metadata(plane, pod, copy)
            if pod["spec"].get("ephemeralContainers"):
                await debugging.copy_ephemeral_containers(
                    self._host.client, pod, copy, api=self._plane_url(plane.name)
                )
            await self._copy_status(plane, pod, copy)
        elif is_deleted(pod):
            if pod["spec"].get("nodeName") and not await self._is_on_host(plane, pod):
                await self._delete_pod(plane, pod)
        elif pod["spec"].get("nodeName") and phase_of(pod) == "Pending":
            await self._create_host_pod(plane, pod)
        elif phase_of(pod) == "Running":
            await self._report_lost(plane, pod)

    async def _create_host_pod(self, plane: PlaneCache, pod: Object) -> None:
        """
        Run a bound pod on the host: claim its lease, prepare its devices, create the host pod.
        """
        if node := host_node_of(pod["spec"]["nodeName"]):
            await self._create_on_offer(plane, pod, node)
            return
        lease = self._lease(plane, pod)
        if lease is None or is_deleted(lease):
            return  # the lease controller removes the node, and the pod with it
        if not wants_gpus(pod):
            if phase_of(lease) == Phase.ACTIVE:  # else it waits for the pod that claims the lease
                await self._ensure_copies(plane, pod)
                await self._write_host_pod(plane, pod, lease)
            return
        if phase_of(lease) != Phase.ACTIVE:
            # Claim first, and run only once the exchange has answered: it may sell an unclaimed
            # lease to somebody else.
            await self._claim(lease, pod)
            return
        await self._ensure_copies(plane, pod)
        pinned = await self._pin_devices(plane, pod, lease)
        if pinned is not None:
            name = pinned.claim["metadata"]["name"]
            await self._write_host_pod(plane, pod, lease, claim=name, beside=pinned.beside)

    async def _ensure_copies(self, plane: PlaneCache, pod: Object) -> None:
        """
        Copy everything that the pod refers to onto the host; record an Event if something is
        missing.
        """
        try:
            await self._copies.ensure(plane, pod)
        except Missing as missing:
            message = f"{missing}: create it, or remove the reference from the pod"
            await self._recorder.record(plane.client, pod, "FailedMount", message, type="Warning")
            raise

    async def _write_host_pod(
        self,
        plane: PlaneCache,
        pod: Object,
        lease: Object | None,
        *,
        claim: str = "",
        beside: str = "",
        node: str = "",
    ) -> None:
        """Create the host pod of a pod."""
        host_pod = hostpods.host_pod(
            plane.name,
            pod,
            lease,
            claim,
            node=node,
            beside=beside,
            volume_claims=volume_claim_names(plane, pod),
            api=self._plane_url(plane.name),
        )
        await self._host.client.create(POD, host_pod, host_pod["metadata"]["namespace"])

    async def _create_on_offer(self, plane: PlaneCache, pod: Object, node: str) -> None:
        """
        Run a pod on CPU that a node's owner offers; fail it, as a kubelet does, if the offer is
        used up.
        """
        host_node = self._host[NODE].get(None, node)
        await self._ensure_copies(plane, pod)
        async with self._offering:  # so that no two pods take the same room
            offer = offers.offer_of(host_node) if host_node is not None else {}
            listing = await self._host.client.list(POD, labels=f"{labels.OFFERED}={node}")
            remaining = offers.left_of(offer, listing.items)
            short = offers.refusal(pod, remaining)
            if not short:
                await self._write_host_pod(plane, pod, None, node=node)
                return
        metadata, message = pod["metadata"], f"node {node} has no room left: Insufficient {short}"
        status = {"phase": "Failed", "reason": f"OutOf{short}", "message": message}
        with suppress(NotFound):
            await plane.client.patch(
                POD,
                metadata["name"],
                {"metadata": {"uid": metadata["uid"]}, "status": status},
                metadata["namespace"],
                subresource="status",
            )

    async def _pin_devices(
        self, plane: PlaneCache, pod: Object, lease: Object
    ) -> pinning.PinnedClaims | None:
        """
        The claims for the pod's devices, or None while its devices are being prepared or have
        failed.
        """
        now = self._clock.now()
        pinned = await pinning.pin(self._host, plane, lease, pod, now=now)
        metadata = pod["metadata"]
        match bindingconditions.progress(pinned.claim, now=now):
            case None:
                return pinned
            case bindingconditions.GivenUp(message=message):
                # The pod bids again: for another device, or for this one once it works.
                reason = f"{message}; its lease is given back"
                await self._recorder.record(
                    plane.client, pod, "DeviceFailed", reason, type="Warning"
                )
                await self._release(lease)
            case bindingconditions.Preparing():
                key = plane.name, POD, metadata["namespace"], metadata["name"]
                self.controller.add_after(key, _PREPARING_SECONDS)
        return None

    async def _release(self, lease: Object) -> None:
        """Delete the lease on the host."""
        metadata = lease["metadata"]
        with suppress(NotFound):
            await self._host.client.delete(
                GPU_LEASE, metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )

    async def _is_on_host(self, plane: PlaneCache, pod: Object) -> bool:
        """
        Return True if the host has a copy of the pod. Reads the host: a cache may lack a new pod.
        """
        metadata = pod["metadata"]
        name = translation.host_name(metadata["namespace"], metadata["name"])
        try:
            host_pod = await self._host.client.get(POD, name, host_namespace(plane.name))
        except NotFound:
            return False
        return _is_copy_of(host_pod, pod)

    async def _claim(self, lease: Object, pod: Object) -> None:
        """Claim the devices at the exchange; once it makes the lease active, time is charged."""
        if phase_of(lease) != Phase.PENDING:
            return
        metadata = pod["metadata"]
        await mark_claimed(
            self._host.client,
            lease,
            reason="PodBound",
            message=f"claimed for {metadata['namespace']}/{metadata['name']}",
            now=self._clock.now(),
        )

    def _plane_url(self, name: str) -> str:
        """The URL of the agent's plane, or ""."""
        agent = self._host[AGENT].get(None, name)
        return str(((agent or {}).get("status") or {}).get("plane", ""))

    def _lease(self, plane: PlaneCache, pod: Object) -> Object | None:
        """The host's lease of the node that the pod is bound to."""
        return self._host[GPU_LEASE].get(host_namespace(plane.name), pod["spec"]["nodeName"])

    async def _copy_metadata(self, plane: PlaneCache, pod: Object, copy: Object) -> None:
        """
        Copy the pod's labels and annotations to the host, where a downward API volume shows them,
        and the node's annotations back.
        """
        desired = hostpods.pod_metadata(plane.name, pod)
        namespace = pod["metadata"]["namespace"]
        hosts_file = hostnames.hosts(
            namespace,
            plane[SERVICE].in_namespace(namespace),
            plane[ENDPOINT_SLICE].in_namespace(namespace),
        )
        desired["annotations"].pop(labels.HOSTS, None)
        if hosts_file:
            desired["annotations"][labels.HOSTS] = hosts_file
        changes = translation.changed_marks(desired, copy, keep=labels.OF_THE_NODE)
        metadata = copy["metadata"]
        if changes:
            with suppress(NotFound):
                await self._host.client.patch(
                    POD, metadata["name"], {"metadata": changes}, metadata["namespace"]
                )
        node_annotations = {
            key: value
            for key, value in (metadata.get("annotations") or {}).items()
            if key in labels.OF_THE_NODE
            and (pod["metadata"].get("annotations") or {}).get(key) != value
        }
        if node_annotations:
            note = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": node_annotations}}
            with suppress(NotFound):
                await plane.client.patch(
                    POD, pod["metadata"]["name"], note, pod["metadata"]["namespace"]
                )

    async def _copy_status(self, plane: PlaneCache, pod: Object, copy: Object) -> None:
        """Copy the host pod's status to the plane, but for the plane's own conditions."""
        status = dict(copy.get("status") or {})
        if status.get("phase", "Pending") == "Pending":
            return
        # These conditions are the plane's own: the host does not know them.
        if _is_ready(copy) and (lease := self._lease(plane, pod)) is not None:
            await mark_up(self._host.client, lease, now=self._clock.now())
        plane_types = ("PodScheduled", "DisruptionTarget")
        plane_conditions = [
            c for c in pod["status"].get("conditions") or () if c["type"] in plane_types
        ]
        host_conditions = [
            c for c in status.get("conditions") or () if c["type"] not in plane_types
        ]
        status["conditions"] = [*plane_conditions, *host_conditions]
        status.pop("resourceClaimStatuses", None)
        if all((pod["status"] or {}).get(key) == value for key, value in status.items()):
            return
        metadata = pod["metadata"]
        with suppress(NotFound):
            await plane.client.patch(
                POD, metadata["name"], {"status": status}, metadata["namespace"],
                subresource="status",
            )  # fmt: skip

    async def _delete_host_pod(self, pod: Object, copy: Object) -> None:
        """Delete the host pod with the grace that the pod has left."""
        metadata = copy["metadata"]
        end = parse_rfc3339(pod["metadata"]["deletionTimestamp"])
        if is_deleted(copy) and parse_rfc3339(metadata["deletionTimestamp"]) <= end:
            return  # else delete it again, with less grace
        seconds = end - self._clock.now()
        with suppress(NotFound):
            await self._host.client.delete(
                POD,
                metadata["name"],
                metadata["namespace"],
                grace_seconds=max(1, int(seconds)),
                uid=metadata["uid"],
            )

    async def _delete_pod(self, plane: PlaneCache, pod: Object) -> None:
        """Remove the pod from the plane at once."""
        metadata = pod["metadata"]
        with suppress(NotFound):
            await plane.client.delete(
                POD,
                metadata["name"],
                metadata["namespace"],
                grace_seconds=0,
                uid=metadata["uid"],
            )

    async def _report_lost(self, plane: PlaneCache, pod: Object) -> None:
        """Mark the pod as failed: its host pod is gone."""
        metadata = pod["metadata"]
        await plane.client.patch(
            POD,
            metadata["name"],
            {
                "status": {
                    "phase": "Failed",
                    "reason": "HostPodLost",
                    "message": "the host pod that ran this pod is gone",
                }
            },
            metadata["namespace"],
            subresource="status",
        )

    async def _sync_event(self, namespace: str, name: str) -> None:
        """Copy a host pod's Event to its original pod in the plane."""
        event = self._host[EVENT].get(namespace, name)
        if event is None:
            return
        host_pod = self._host[POD].get(namespace, event["involvedObject"]["name"])
        if host_pod is None or (original := translation.origin(host_pod)) is None:
            return
        plane = self._planes.get(host_pod["metadata"]["labels"][labels.AGENT])
        if plane is None or plane[POD].get(*original) is None:
            return
        copy: dict[str, Any] = {
            **{key: value for key, value in event.items() if key != "metadata"},
            "metadata": {"name": name, "namespace": original[0]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": original[0],
                "name": original[1],
                "uid": host_pod["metadata"]["annotations"][labels.PLANE_UID],
            },
        }
        try:
            await plane.client.create(EVENT, copy, original[0])
        except AlreadyExists:
            update = {key: event[key] for key in ("count", "lastTimestamp") if event.get(key)}
            await plane.client.patch(EVENT, name, update, original[0])


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _copies_key(agent: str) -> Key:
    """The key under which all copies of an agent are refreshed; it names no single object."""
    return (agent, CONFIG_MAP, "", "")


def _is_copy_of(copy: Object, original: Object | None) -> bool:
    """Return True if the host object is a copy of this very original."""
    annotations = copy["metadata"].get("annotations") or {}
    return original is not None and annotations.get(labels.PLANE_UID) == original["metadata"]["uid"]
