"""
The syncer: carries an agent's bids and bound pods to the host, and what became of them
back.

The plane says what should be; the host says what is. A host object whose original is
gone, or has another uid, is removed. Every step can be repeated.
"""

from __future__ import annotations

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
    POD,
    SERVICE,
    VOLUME_CLAIM,
    Kind,
)
from bidplane.api.lease import Phase
from bidplane.controllers import debugging, pinning
from bidplane.controllers.claiming import claim, tell_up
from bidplane.controllers.copies import LOOK_SECONDS, Copies, Missing, claims_here
from bidplane.core import binding, hostpods, naming, translation
from bidplane.core.scheduling import is_deleted, phase_of
from bidplane.core.translation import lease_label
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.index import Index
from bidplane.machinery.planes import PlaneCache, PlaneCaches

_PREPARING_SECONDS = 1.0  # between two looks at devices that are being prepared

Key = tuple[str, Kind, str, str]  # agent, kind, and the plane's namespace and name


class SyncerController:
    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-syncer", clock=clock)
        self._copies = Copies(host.client, clock=clock)
        self._by_lease = Index(host[POD], lease_label)
        self.controller: Controller[Key] = Controller("syncer", self.reconcile, workers=WORKERS)
        for kind in (BID, POD):
            planes.on_change(kind, self._plane_handler(kind))
            host[kind].on_change(self._host_handler(kind))
        for kind in (POD, VOLUME_CLAIM):
            planes.on_change(kind, self._may_be_named)
        for kind in (SERVICE, ENDPOINT_SLICE):
            planes.on_change(kind, self._names_changed)
        host[EVENT].on_change(self._event_happened)
        host[GPU_LEASE].on_change(self._lease_changed)
        host[AGENT].on_change(self._agent_changed)
        planes.on_open(self._opened)

    def _may_be_named(self, plane: str, event: EventType, obj: Object) -> None:
        self.controller.add_after(_copies_of(plane), LOOK_SECONDS)

    def _names_changed(self, plane: str, event: EventType, obj: Object) -> None:
        """Pods of its namespace know other pods by what it says."""
        cache = self._planes.awake(plane)
        namespace = obj["metadata"]["namespace"]
        for pod in cache[POD].in_namespace(namespace) if cache is not None else ():
            if pod["spec"].get("nodeName"):
                self.controller.add((plane, POD, namespace, pod["metadata"]["name"]))

    def _agent_changed(self, event: EventType, agent: Object) -> None:
        """Its bids stand, or not, as it is suspended."""
        if event == "DELETED":
            self._copies.forget(agent["metadata"]["name"])
        plane = self._planes.awake(agent["metadata"]["name"])
        for bid in plane[BID].items() if plane is not None else ():
            metadata = bid["metadata"]
            self.controller.add(
                (agent["metadata"]["name"], BID, metadata["namespace"], metadata["name"])
            )

    def _is_suspended(self, agent: str) -> bool:
        known = self._host[AGENT].get(None, agent)
        return known is not None and bool(known["spec"].get("suspended"))

    def _plane_handler(self, kind: Kind) -> Any:
        def changed(plane: str, event: EventType, obj: Object) -> None:
            metadata = obj["metadata"]
            self.controller.add((plane, kind, metadata["namespace"], metadata["name"]))

        return changed

    def _host_handler(self, kind: Kind) -> Any:
        def changed(event: EventType, obj: Object) -> None:
            self._add_original(kind, obj)

        return changed

    def _add_original(self, kind: Kind, host_object: Object) -> None:
        came_from = translation.origin(host_object)
        agent = (host_object["metadata"].get("labels") or {}).get(labels.AGENT)
        if came_from is not None and agent is not None:
            self.controller.add((agent, kind, *came_from))

    def _lease_changed(self, event: EventType, lease: Object) -> None:
        """A pod may have been bound before the lease's host object reached our cache."""
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
        about = obj.get("involvedObject") or {}
        if event != "DELETED" and about.get("kind") == "Pod":
            metadata = obj["metadata"]
            self.controller.add(
                (metadata["namespace"], EVENT, metadata["namespace"], metadata["name"])
            )

    def _opened(self, plane: str) -> None:
        """What was carried out before a restart may have lost its original meanwhile."""
        for kind in (BID, POD):
            for obj in self._host[kind].items():
                if (obj["metadata"].get("labels") or {}).get(labels.AGENT) == plane:
                    self._add_original(kind, obj)

    async def reconcile(self, key: Key) -> float | None:
        agent, kind, namespace, name = key
        if kind == EVENT:
            await self._sync_event(namespace, name)
            return None
        if kind == CONFIG_MAP:
            # In a plane that sleeps nothing changes.
            awake = self._planes.awake(agent)
            return await self._copies.look(awake) if awake is not None else None
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
        metadata = copy["metadata"]
        if not is_deleted(copy):
            with suppress(NotFound):
                await self._host.client.delete(
                    kind, metadata["name"], metadata["namespace"], uid=metadata["uid"]
                )

    async def _sync_bid(self, plane: PlaneCache, bid: Object, copy: Object | None) -> None:
        metadata = bid["metadata"]
        if copy is None:
            if not is_deleted(bid):
                wanted = translation.host_bid(plane.name, bid)
                await self._host.client.create(BID, wanted, wanted["metadata"]["namespace"])
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
        if copy is not None:
            if is_deleted(pod):
                await self._delete_host_pod(pod, copy)
            await self._carry_marks(plane, pod, copy)
            if pod["spec"].get("ephemeralContainers"):
                await debugging.carry(self._host.client, pod, copy, api=self._address(plane.name))
            await self._copy_status(plane, pod, copy)
        elif is_deleted(pod):
            if pod["spec"].get("nodeName") and not await self._is_on_host(plane, pod):
                await self._delete_pod(plane, pod)
        elif pod["spec"].get("nodeName") and phase_of(pod) == "Pending":
            await self._create_host_pod(plane, pod)
        elif phase_of(pod) == "Running":
            await self._report_lost(plane, pod)

    async def _create_host_pod(self, plane: PlaneCache, pod: Object) -> None:
        lease = self._lease(plane, pod)
        if lease is None or is_deleted(lease):
            return  # the lease controller removes the node, and the pod with it
        if phase_of(lease) != Phase.ACTIVE:
            # Claimed first, and only run once the exchange has answered: a lease it lets
            # go of unclaimed may be sold to somebody else.
            await self._claim(lease, pod)
            return
        try:
            await self._copies.ensure(plane, pod)
        except Missing as missing:
            words = f"{missing}: create it, or take it out of the pod"
            await self._recorder.record(plane.client, pod, "FailedMount", words, type="Warning")
            raise
        pinned = await self._prepared(plane, pod, lease)
        if pinned is None:
            return
        wanted = hostpods.host_pod(
            plane.name,
            pod,
            lease,
            pinned.claim["metadata"]["name"],
            beside=pinned.beside,
            volume_claims=claims_here(plane, pod),
            api=self._address(plane.name),
        )
        await self._host.client.create(POD, wanted, wanted["metadata"]["namespace"])

    async def _prepared(
        self, plane: PlaneCache, pod: Object, lease: Object
    ) -> pinning.Pinned | None:
        """The claims for the pod's devices, once they may be used; None until then."""
        now = self._clock.now()
        pinned = await pinning.pin(self._host, plane, lease, pod, now=now)
        metadata = pod["metadata"]
        match binding.progress(pinned.claim, now=now):
            case None:
                return pinned
            case binding.GivenUp(message=message):
                # Its pod bids again: for another, or for this one when it works.
                words = f"{message}; its lease is given back"
                await self._recorder.record(
                    plane.client, pod, "DeviceFailed", words, type="Warning"
                )
                await self._release(lease)
            case binding.Preparing():
                key = plane.name, POD, metadata["namespace"], metadata["name"]
                self.controller.add_after(key, _PREPARING_SECONDS)
        return None

    async def _release(self, lease: Object) -> None:
        metadata = lease["metadata"]
        with suppress(NotFound):
            await self._host.client.delete(
                GPU_LEASE, metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )

    async def _is_on_host(self, plane: PlaneCache, pod: Object) -> bool:
        """Asked of the host itself, whose cache may not have heard yet of a pod just made."""
        metadata = pod["metadata"]
        name = translation.host_name(metadata["namespace"], metadata["name"])
        try:
            found = await self._host.client.get(POD, name, host_namespace(plane.name))
        except NotFound:
            return False
        return _is_copy_of(found, pod)

    async def _claim(self, lease: Object, pod: Object) -> None:
        """Ask the exchange for the devices; once the lease is active, time is charged."""
        if phase_of(lease) != Phase.PENDING:
            return
        metadata = pod["metadata"]
        await claim(
            self._host.client,
            lease,
            reason="PodBound",
            message=f"claimed for {metadata['namespace']}/{metadata['name']}",
            now=self._clock.now(),
        )

    def _address(self, agent: str) -> str:
        known = self._host[AGENT].get(None, agent)
        return str(((known or {}).get("status") or {}).get("plane", ""))

    def _lease(self, plane: PlaneCache, pod: Object) -> Object | None:
        return self._host[GPU_LEASE].get(host_namespace(plane.name), pod["spec"]["nodeName"])

    async def _carry_marks(self, plane: PlaneCache, pod: Object, copy: Object) -> None:
        """Labels and annotations go to the host, where a downward API volume shows them."""
        wanted = translation.host_metadata(plane.name, pod)
        wanted["labels"][labels.LEASE] = pod["spec"].get("nodeName", "")
        namespace = pod["metadata"]["namespace"]
        known = naming.hosts(
            namespace,
            plane[SERVICE].in_namespace(namespace),
            plane[ENDPOINT_SLICE].in_namespace(namespace),
        )
        wanted["annotations"].pop(labels.HOSTS, None)
        if known:
            wanted["annotations"][labels.HOSTS] = known
        changes = translation.changed_marks(wanted, copy, keep=labels.OF_THE_NODE)
        metadata = copy["metadata"]
        if changes:
            with suppress(NotFound):
                await self._host.client.patch(
                    POD, metadata["name"], {"metadata": changes}, metadata["namespace"]
                )
        told = {
            key: value
            for key, value in (metadata.get("annotations") or {}).items()
            if key in labels.OF_THE_NODE
            and (pod["metadata"].get("annotations") or {}).get(key) != value
        }
        if told:
            note = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": told}}
            with suppress(NotFound):
                await plane.client.patch(
                    POD, pod["metadata"]["name"], note, pod["metadata"]["namespace"]
                )

    async def _copy_status(self, plane: PlaneCache, pod: Object, copy: Object) -> None:
        status = dict(copy.get("status") or {})
        if status.get("phase", "Pending") == "Pending":
            return
        # The plane's parts said when, where and how long; the host knows nothing of that.
        if _is_ready(copy) and (lease := self._lease(plane, pod)) is not None:
            await tell_up(self._host.client, lease, now=self._clock.now())
        said_here = ("PodScheduled", "DisruptionTarget")
        ours = [c for c in pod["status"].get("conditions") or () if c["type"] in said_here]
        theirs = [c for c in status.get("conditions") or () if c["type"] not in said_here]
        status["conditions"] = [*ours, *theirs]
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
        metadata = copy["metadata"]
        end = parse_rfc3339(pod["metadata"]["deletionTimestamp"])
        if is_deleted(copy) and parse_rfc3339(metadata["deletionTimestamp"]) <= end:
            return  # else: deleted again, with less grace
        left = end - self._clock.now()
        with suppress(NotFound):
            await self._host.client.delete(
                POD,
                metadata["name"],
                metadata["namespace"],
                grace_seconds=max(1, int(left)),
                uid=metadata["uid"],
            )

    async def _delete_pod(self, plane: PlaneCache, pod: Object) -> None:
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
        metadata = pod["metadata"]
        await plane.client.patch(
            POD,
            metadata["name"],
            {
                "status": {
                    "phase": "Failed",
                    "reason": "HostPodLost",
                    "message": "the pod that ran this one on the host is gone",
                }
            },
            metadata["namespace"],
            subresource="status",
        )

    async def _sync_event(self, namespace: str, name: str) -> None:
        """A host pod's event, told of the pod the agent knows."""
        event = self._host[EVENT].get(namespace, name)
        if event is None:
            return
        host_pod = self._host[POD].get(namespace, event["involvedObject"]["name"])
        if host_pod is None or (came_from := translation.origin(host_pod)) is None:
            return
        plane = self._planes.get(host_pod["metadata"]["labels"][labels.AGENT])
        if plane is None or plane[POD].get(*came_from) is None:
            return
        told: dict[str, Any] = {
            **{key: value for key, value in event.items() if key != "metadata"},
            "metadata": {"name": name, "namespace": came_from[0]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": came_from[0],
                "name": came_from[1],
                "uid": host_pod["metadata"]["annotations"][labels.PLANE_UID],
            },
        }
        try:
            await plane.client.create(EVENT, told, came_from[0])
        except AlreadyExists:
            again = {key: event[key] for key in ("count", "lastTimestamp") if event.get(key)}
            await plane.client.patch(EVENT, name, again, came_from[0])


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _copies_of(agent: str) -> Key:
    """Not one object: all that an agent's pods name."""
    return (agent, CONFIG_MAP, "", "")


def _is_copy_of(copy: Object, original: Object | None) -> bool:
    annotations = copy["metadata"].get("annotations") or {}
    return original is not None and annotations.get(labels.PLANE_UID) == original["metadata"]["uid"]
