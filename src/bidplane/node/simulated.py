"""
A kubelet that runs nothing: pods bound to its nodes live and end by their annotations.

Stands in where no GPU is. Everything else about it is a kubelet's: it registers Nodes
and ResourceSlices, starts what is bound to it, reports status, ends what is deleted
within its grace, and serves logs. It keeps no state of its own, so after a restart it
goes on from what the API says: a pod that began at ten and takes a minute ends a minute
past ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import NODE, POD, RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import Client, EventType, Object
from bidplane.machinery.clock import Clock, parse_rfc3339, rfc3339
from bidplane.machinery.controller import Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.informer import Informer, Key
from bidplane.node import fleet as fleets
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.inventory.slices import DRIVER, degraded, slices_of

_SHUTDOWN_SECONDS = 1.0  # how long a simulated process takes to obey SIGTERM
_SIGTERM_EXIT_CODE = 143
_RESTART_SECONDS = 1.0  # between two restarts, at least: statuses count in seconds
_LONGEST_SECONDS = 1e9


class SimulatedNodes:
    """All nodes of a declared fleet, in one process."""

    def __init__(
        self, client: Client, fleet: Fleet, *, clock: Clock, address: str = "", port: int = 0
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._clock = clock
        self._address = address
        self._port = port
        self._names = {node.name for node in fleet.nodes}
        self._recorder = Recorder("bidplane-node", clock=clock)
        self.pods = Informer(client, POD, clock=clock)
        self.controller: Controller[Key] = Controller("node", self.reconcile)
        self.pods.on_change(self._changed)

    async def register(self) -> None:
        known: dict[str, list[Object]] = {}
        for one in (await self._client.list(RESOURCE_SLICE)).items:
            if one["spec"]["driver"] == DRIVER:
                known.setdefault(one["spec"].get("nodeName", ""), []).append(one)
        for node in self._fleet.nodes:
            await self._register(node, known.get(node.name, []))
        await self._forget_others(known)

    async def _forget_others(self, slices: Mapping[str, list[Object]]) -> None:
        """What an earlier fleet had and this one has not is no longer for sale."""
        for known in (await self._client.list(NODE, labels=f"{fleets.SIMULATED}=true")).items:
            name = known["metadata"]["name"]
            if name not in self._names:
                await self._forget_slices(slices.get(name, []))
                with suppress(NotFound):
                    await self._client.delete(NODE, name)

    async def _forget_slices(self, slices: Sequence[Object]) -> None:
        for one in slices:
            with suppress(NotFound):
                await self._client.delete(RESOURCE_SLICE, one["metadata"]["name"])

    async def _register(self, node: NodeDeclaration, slices: Sequence[Object]) -> None:
        with suppress(AlreadyExists):
            await self._client.create(NODE, fleets.node_object(node))
        await self._client.patch(
            NODE, node.name, {"status": self._node_status(node)}, subresource="status"
        )
        published = slices_of(fleets.machine_of(node), taint_degraded=node.taint_degraded)
        await self._publish(published, {one["metadata"]["name"]: one for one in slices})
        for words in degraded(published):
            about = await self._client.get(NODE, node.name)
            await self._recorder.record(self._client, about, "LinkDegraded", words, type="Warning")

    async def _publish(self, wanted: list[dict[str, Any]], known: Mapping[str, Object]) -> None:
        """All of a node's slices in one generation; what an earlier fleet had of it goes."""
        names = {one["metadata"]["name"]: one for one in wanted}
        if known.keys() == names.keys() and all(
            _content(known[name]) == _content(one) for name, one in names.items()
        ):
            return
        newest = max((one["spec"]["pool"]["generation"] for one in known.values()), default=0)
        for name, one in names.items():
            one["spec"]["pool"] = {**one["spec"]["pool"], "generation": newest + 1}
            if name in known:
                await self._client.patch(RESOURCE_SLICE, name, {"spec": one["spec"]})
                continue
            await self._client.create(RESOURCE_SLICE, one)
        await self._forget_slices([one for name, one in known.items() if name not in names])

    def _node_status(self, node: NodeDeclaration) -> dict[str, Any]:
        now = rfc3339(self._clock.now())
        gpus = len(fleets.machine_of(node).gpus)
        room = {
            "cpu": "128",
            "memory": "1Ti",
            "pods": "110",
            labels.GPU_RESOURCE: str(gpus),
        }
        return {
            "capacity": room,
            "allocatable": room,
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": node.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Simulated",
                    "message": "a simulated node is always ready",
                    "lastTransitionTime": now,
                    "lastHeartbeatTime": now,
                }
            ],
        }

    def has(self, pod: Object) -> bool:
        """Whether a pod is bound to one of these nodes."""
        return pod["spec"].get("nodeName") in self._names

    def _changed(self, event: EventType, pod: Object) -> None:
        if self.has(pod):
            self.controller.add((pod["metadata"]["namespace"], pod["metadata"]["name"]))

    async def reconcile(self, key: Key) -> float | None:
        pod = self.pods.get(*key)
        if pod is None:
            return None
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if pod["metadata"].get("deletionTimestamp"):
            return await self._stop(pod, phase)
        if phase == "Pending":
            await self._start(pod)
        elif phase == "Running":
            await self._maybe_save(pod)
            return await self._maybe_finish(pod)
        return None

    async def _maybe_save(self, pod: Object) -> None:
        """On notice, what a checkpoint command would save is written down."""
        metadata = pod["metadata"]
        notes = metadata.get("annotations") or {}
        if (
            labels.NOTICE not in notes
            or not notes.get(labels.CHECKPOINT_COMMAND)
            or labels.CHECKPOINT in notes
        ):
            return
        now = self._clock.now()
        done = now - parse_rfc3339(began_at(pod)) + _done_before(pod)
        said = {
            labels.CHECKPOINT: f"{rfc3339(now)} exit 0 (simulated)",
            labels.SIMULATED_SAVED: str(int(done)),
        }
        with suppress(NotFound):
            await self._client.patch(
                POD,
                metadata["name"],
                {"metadata": {"uid": metadata["uid"], "annotations": said}},
                metadata["namespace"],
            )
        await self._recorder.record(
            self._client, pod, "Checkpointed", f"simulated: {notes[labels.CHECKPOINT_COMMAND]}"
        )

    async def _start(self, pod: Object) -> None:
        now = rfc3339(self._clock.now())
        devices = await self._claimed(pod)
        await self._report(pod, "Running", _running(pod, now, devices), started=now)
        await self._recorder.record(
            self._client,
            pod,
            "Started",
            f"simulated on {pod['spec']['nodeName']} with {', '.join(devices) or 'no GPU'}",
        )

    async def _maybe_finish(self, pod: Object) -> float | None:
        """End the pod if its time is over, else say how long it has left."""
        seconds = annotation_seconds(pod, labels.SIMULATED_SECONDS)
        if seconds is None:
            return None
        seconds = max(0.0, seconds - _done_before(pod))
        code = int(annotation_seconds(pod, labels.SIMULATED_EXIT_CODE) or 0)
        policy = pod["spec"].get("restartPolicy", "Always")
        again = policy == "Always" or (policy == "OnFailure" and code != 0)
        end = parse_rfc3339(began_at(pod)) + (max(seconds, _RESTART_SECONDS) if again else seconds)
        left = end - self._clock.now()
        if left > 0:
            return left
        if again:
            now = rfc3339(self._clock.now())
            containers = _running(pod, now, devices_of(pod), restarts=restarts(pod) + 1)
            await self._report(pod, "Running", containers)
            return max(seconds, _RESTART_SECONDS)
        phase = "Succeeded" if code == 0 else "Failed"
        # When it ended, though the node may have been away: not when that was noticed.
        await self._report(pod, phase, _ended(pod, rfc3339(end), code))
        return None

    async def _stop(self, pod: Object, phase: str) -> float | None:
        metadata = pod["metadata"]
        over: float = parse_rfc3339(metadata["deletionTimestamp"])
        if phase == "Running":
            asked: float = over - metadata.get("deletionGracePeriodSeconds", 0)
            obeys = annotation_seconds(pod, labels.SIMULATED_SHUTDOWN_SECONDS)
            left = min(over, asked + (_SHUTDOWN_SECONDS if obeys is None else obeys))
            left -= self._clock.now()
            if left > 0:
                return left
            now = rfc3339(self._clock.now())
            await self._report(pod, "Failed", _ended(pod, now, _SIGTERM_EXIT_CODE))
        with suppress(NotFound):
            await self._client.delete(
                POD,
                metadata["name"],
                metadata["namespace"],
                grace_seconds=0,
                uid=metadata["uid"],
            )
        return None

    async def _claimed(self, pod: Object) -> list[str]:
        """The devices that are claimed for a pod, as the claim's allocation names them."""
        devices: list[str] = []
        for claim in pod["spec"].get("resourceClaims") or ():
            allocated = await self._client.get(
                RESOURCE_CLAIM, claim["resourceClaimName"], pod["metadata"]["namespace"]
            )
            allocation = (allocated.get("status") or {}).get("allocation") or {}
            results = (allocation.get("devices") or {}).get("results") or ()
            devices.extend(f"{result['pool']}/{result['device']}" for result in results)
        return devices

    async def _report(
        self, pod: Object, phase: str, containers: list[dict[str, Any]], *, started: str = ""
    ) -> None:
        now = rfc3339(self._clock.now())
        ready = "True" if phase == "Running" else "False"
        reason = {} if phase == "Running" else {"reason": "PodCompleted"}
        status: dict[str, Any] = {
            "phase": phase,
            "conditions": [
                {"type": type_, "status": value, "lastTransitionTime": now, **reason}
                for type_, value in (
                    ("Initialized", "True"),
                    ("Ready", ready),
                    ("ContainersReady", ready),
                    ("PodScheduled", "True"),
                )
            ],
            "containerStatuses": containers,
            "hostIP": self._address,
        }
        if started:
            status["startTime"] = started
        metadata = pod["metadata"]
        with suppress(NotFound):
            await self._client.patch(
                POD,
                metadata["name"],
                {"metadata": {"uid": metadata["uid"]}, "status": status},
                metadata["namespace"],
                subresource="status",
            )


def _content(slice_: Object) -> Any:
    spec = slice_["spec"]
    return spec.get("devices"), spec.get("sharedCounters"), spec["pool"]["resourceSliceCount"]


def annotation_seconds(pod: Object, name: str) -> float | None:
    """A number in an annotation; one that cannot be read counts as not there."""
    text = (pod["metadata"].get("annotations") or {}).get(name)
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds <= _LONGEST_SECONDS else None  # neither nan nor inf


def _done_before(pod: Object) -> float:
    """What an earlier life of the pod had done when its checkpoint was taken."""
    return annotation_seconds(pod, labels.SIMULATED_DONE) or 0.0


def began_at(pod: Object) -> str:
    """When what runs now began: the pod's start, or its containers' last restart."""
    for container in pod["status"].get("containerStatuses") or ():
        running = (container.get("state") or {}).get("running")
        if running:
            return str(running["startedAt"])
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return str(ended["startedAt"])
    return str(pod["status"]["startTime"])


def restarts(pod: Object) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return max((container.get("restartCount", 0) for container in statuses), default=0)


def devices_of(pod: Object) -> list[str]:
    """What a pod that was started runs on. In its status: the claim goes when the lease goes."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        for allocated in container.get("allocatedResourcesStatus") or ():
            return [str(device["resourceID"]) for device in allocated.get("resources") or ()]
    return []


def _running(
    pod: Object, now: str, devices: list[str], *, restarts: int = 0
) -> list[dict[str, Any]]:
    return [
        {
            **_container(container, restarts, devices),
            "ready": True,
            "started": True,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]


def _ended(pod: Object, now: str, code: int) -> list[dict[str, Any]]:
    started = began_at(pod)
    reason = "Completed" if code == 0 else "Error"
    ended = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now}
    return [
        {
            **_container(container, restarts(pod), devices_of(pod)),
            "ready": False,
            "started": False,
            "state": {"terminated": ended},
        }
        for container in pod["spec"]["containers"]
    ]


def _container(container: Object, restarts: int, devices: list[str]) -> dict[str, Any]:
    allocated = [{"resourceID": device, "health": "Healthy"} for device in devices]
    return {
        **(
            {"allocatedResourcesStatus": [{"name": "claim:gpus", "resources": allocated}]}
            if devices
            else {}
        ),
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "restartCount": restarts,
        "lastState": {},
    }
