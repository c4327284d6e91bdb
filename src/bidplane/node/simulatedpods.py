"""
The lifecycle of simulated pods: a function of their annotations (`core.nodes.simulation`) and time.

Its only state are the MIG instances of the simulated GPUs, and these follow from the pods: after a
restart it continues from the API's objects. A pod that began at ten and takes a minute ends a
minute past ten.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from bidplane.api import labels
from bidplane.api.kinds import NODE, POD, RESOURCE_CLAIM
from bidplane.api.objects import is_deleted
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.devices import freeing
from bidplane.core.devices.freeing import MemoryInUse
from bidplane.core.devices.migdevices import Key
from bidplane.core.nodes import simulation
from bidplane.core.nodes.simulation import BadScript, Script, SimulatedRun, SimulationStage
from bidplane.core.scheduling.podclaims import claim_name
from bidplane.errors import NotFound, UserError
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder
from bidplane.node import simulatedmetrics
from bidplane.node import simulatedstatus as statuses
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.inventory import DeclaredDevices, claimstatus
from bidplane.node.inventory.partitions import Partitions
from bidplane.node.inventory.slices import DRIVER
from bidplane.node.simulatedleftovers import Leftover, ended_at, restarts_after, stopped_at

_SIGTERM_EXIT_CODE = 143
_RESTART_SECONDS = 1.0  # between two restarts, at least: statuses count in seconds
_RETRY_SECONDS = 10.0  # for devices that could not be prepared
_FINISHED = ("Succeeded", "Failed")


class SimulatedPods:
    """Starts, restarts and ends the simulated pods of a fleet's nodes."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        recorder: Recorder,
        *,
        clock: Clock,
        address: str,
        taint: Callable[[str], Awaitable[None]],
    ) -> None:
        """Simulate pods; `taint` publishes a node's devices with the taints of `leftovers`."""
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._fleet = fleet
        self.leftovers: dict[str, Leftover] = {}  # of pods that are gone, by POOL/NAME
        self._taint = taint
        self._announced: set[str] = set()  # pods, by uid, that wait for their memory
        self._address = address
        self._seed = str(fleet.seed)
        self._nodes: Mapping[str, NodeDeclaration] = {
            node.name: node for node in fleet.nodes if node.mig
        }
        self._partitions: dict[
            str, Partitions
        ] = {}  # by node, once a MIG instance of it was claimed

    def partitions(self, node: str) -> Partitions | None:
        """The MIG instances of a node's GPUs; None where they have no MIG."""
        declared = self._nodes.get(node)
        if declared is not None and node not in self._partitions:
            devices = DeclaredDevices(declared)
            cards = devices.instances(None)
            assert cards is not None
            partitions = Partitions(cards)
            partitions.slices_are(devices.slices())
            self._partitions[node] = partitions
        return self._partitions.get(node)

    async def release(self, pod: Object) -> None:
        """Free the devices of a pod that was deleted from the API."""
        await self._release_devices(pod)
        if pod["metadata"]["uid"] in self._announced or not statuses.devices_of(pod):
            self._announced.discard(pod["metadata"]["uid"])
            return
        # By force: its processes end now.
        await self._leave(pod, self._script(pod), self._clock.now())

    async def step(self, pod: Object) -> float | None:
        """Do what is due for a pod; return the seconds until the next step."""
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if is_deleted(pod):
            return await self._stop(pod, phase)
        if phase in _FINISHED:
            await self._release_devices(pod)
            return None
        try:
            script = simulation.read(pod, seed=self._seed)
        except BadScript as error:
            await self._refuse(pod, phase, str(error))
            return None
        if phase == "Pending":
            return await self._start(pod, script)
        await self._restore_devices(pod)
        await self._save_on_notice(pod, script)
        return await self._continue(pod, script)

    async def _refuse(self, pod: Object, phase: str, problem: str) -> None:
        """
        Fail a pending pod whose annotations cannot be read; a running one continues until it is
        deleted.
        """
        await self._record_event(pod, "BadAnnotation", problem, warning=True)
        if phase == "Pending":
            status = {"phase": "Failed", "reason": "BadAnnotation", "message": problem}
            await self._patch(pod, {"status": status}, subresource="status")

    # From created to running.

    async def _start(self, pod: Object, script: Script) -> float | None:
        """Start a pending pod once its start time is over; return the seconds until then."""
        now = self._clock.now()
        run = script.run(0)
        start_time = (pod.get("status") or {}).get("startTime")
        seconds_left = parse_rfc3339(start_time) + run.start - now if start_time else run.start
        if start_time and seconds_left > 0:
            await self._restore_devices(pod)
            return seconds_left
        try:
            devices = statuses.allocated(pod, await self._prepare(pod))
        except UserError as error:
            await self._record_event(pod, "FailedPrepareDynamicResources", str(error), warning=True)
            await self._report(pod, "Pending", statuses.waiting(pod, str(error)))
            return _RETRY_SECONDS
        began = rfc3339(now)
        if seconds_left > 0:
            await self._report(pod, "Pending", statuses.waiting(pod, "", devices), started=began)
            return seconds_left
        containers = statuses.running(pod, began, devices, ready=run.load == 0)
        await self._report(pod, "Running", containers, started=start_time or began)
        node = pod["spec"]["nodeName"]
        names = ", ".join(statuses.devices_of({"status": {"containerStatuses": containers}}))
        await self._record_event(pod, "Started", f"simulated on {node} with {names or 'no GPU'}")
        return None  # the status write triggers the next step

    async def _prepare(self, pod: Object) -> dict[str, dict[str, str]]:
        """
        Prepare the pod's claimed devices and make its MIG instances. Return, for each of the pod's
        claims by name, its devices with the request each is for. Raises `UserError`.
        """
        namespace = pod["metadata"]["namespace"]
        by_name = {
            reference["name"]: await self._client.get(
                RESOURCE_CLAIM, claim_name(pod, reference), namespace
            )
            for reference in pod["spec"].get("resourceClaims") or ()
        }
        claims = list(by_name.values())
        keys = [key for claim in claims for key in claimstatus.allocated(claim)]
        cards = self.partitions(pod["spec"]["nodeName"])
        if cards is not None and cards.concern(keys):
            now = self._clock.now()
            try:
                instances = await cards.take(pod["metadata"]["uid"], keys)
            except UserError as error:
                for claim in claims:
                    await claimstatus.tell(
                        self._client, claim, {}, failed=keys, problem=str(error), now=now
                    )
                raise
            for claim in claims:
                await claimstatus.tell(self._client, claim, instances, now=now)
        # Devices of other drivers are prepared by those.
        return {
            name: {
                f"{result['pool']}/{result['device']}": result["request"]
                for result in claimstatus.results(claim)
                if result["driver"] == DRIVER
            }
            for name, claim in by_name.items()
        }

    async def _restore_devices(self, pod: Object) -> None:
        """Give a running pod its MIG instances again after a restart of the node."""
        cards = self.partitions(pod["spec"]["nodeName"])
        keys = _keys(statuses.devices_of(pod))
        if cards is not None and cards.concern(keys):
            with suppress(UserError):  # the device then shows as lost
                await cards.take(pod["metadata"]["uid"], keys)

    async def _release_devices(self, pod: Object) -> None:
        """Free the pod's MIG instances."""
        cards = self._partitions.get(pod["spec"].get("nodeName", ""))
        if cards is not None:
            await cards.leave(pod["metadata"]["uid"])

    # From running to ended.

    async def _continue(self, pod: Object, script: Script) -> float | None:
        """
        Make a loaded pod ready, and end or restart one whose time is over; return the seconds
        until then.
        """
        number = statuses.restarts(pod)
        run = script.run(number)
        began = parse_rfc3339(statuses.began_at(pod))
        duration = run.ends_after
        starts_again = restarts_after(pod, run)
        if starts_again:
            duration = max(duration, _RESTART_SECONDS)
        now = self._clock.now()
        if now < began + duration:
            if run.stage(now - began) is SimulationStage.LOADING:
                return min(run.load, duration) - (now - began)
            if not statuses.is_ready(pod):
                devices = statuses.allocated_of(pod)
                containers = statuses.running(
                    pod, statuses.began_at(pod), devices, ready=True, restarts=number
                )
                await self._report(pod, "Running", containers)
            return began + duration - now if math.isfinite(duration) else None
        if starts_again:
            await self._restart(pod, run, script.run(number + 1), number + 1)
            return None
        phase = "Succeeded" if run.code == 0 else "Failed"
        if (pause := await self._wait_for_memory(pod, script)) is not None:
            return pause
        # The time when it ended, not when this was noticed: the node may have been down.
        await self._release_devices(pod)
        await self._report(pod, phase, statuses.ended(pod, rfc3339(began + duration), run.code))
        return None

    async def _restart(
        self, pod: Object, before: SimulatedRun, run: SimulatedRun, number: int
    ) -> None:
        """Start the pod's containers again."""
        now = rfc3339(self._clock.now())
        containers = statuses.running(
            pod, now, statuses.allocated_of(pod), ready=run.load == 0, restarts=number
        )
        last = {"terminated": statuses.terminated(pod, now, before.code)}
        await self._report(
            pod, "Running", [{**container, "lastState": last} for container in containers]
        )

    async def _save_on_notice(self, pod: Object, script: Script) -> None:
        """On notice, record the progress that a checkpoint command would save."""
        annotations_of_pod = pod["metadata"].get("annotations") or {}
        command = annotations_of_pod.get(labels.CHECKPOINT_COMMAND)
        if (
            labels.NOTICE not in annotations_of_pod
            or not command
            or labels.CHECKPOINT in annotations_of_pod
        ):
            return
        now = self._clock.now()
        run = script.run(statuses.restarts(pod))
        done = max(0.0, now - parse_rfc3339(statuses.began_at(pod)) - run.load) + script.done
        annotations_to_set = {
            labels.CHECKPOINT: f"{rfc3339(now)} exit 0 (simulated)",
            labels.SIMULATED_SAVED: str(int(done)),
        }
        await self._patch(pod, {"metadata": {"annotations": annotations_to_set}})
        await self._record_event(pod, "Checkpointed", f"simulated: {command}")

    async def _stop(self, pod: Object, phase: str) -> float | None:
        """
        End a deleted pod once its shutdown time or grace period is over; return the seconds until
        then.
        """
        metadata = pod["metadata"]
        if phase == "Running":
            script = self._script(pod)
            seconds_left = stopped_at(pod, script) - self._clock.now()
            if seconds_left > 0:
                return seconds_left
            if (pause := await self._wait_for_memory(pod, script)) is not None:
                return pause
            now = rfc3339(self._clock.now())
            await self._report(pod, "Failed", statuses.ended(pod, now, _SIGTERM_EXIT_CODE))
        await self._release_devices(pod)
        with suppress(NotFound):
            await self._client.delete(
                POD,
                metadata["name"],
                metadata["namespace"],
                grace_seconds=0,
                uid=metadata["uid"],
            )
        return None

    def _script(self, pod: Object) -> Script:
        """The script in a running pod's annotations; the defaults if they cannot be read."""
        try:
            return simulation.read(pod, seed=self._seed)
        except BadScript:
            return Script()

    # The memory that ended pods leave in use.

    async def _wait_for_memory(self, pod: Object, script: Script) -> float | None:
        """
        Return the seconds until the next look at the memory of an ended pod's GPUs; None once that
        is seen free, or the pod has waited long enough.
        """
        if not script.linger:
            return None  # simulated memory is then free at once
        now, uid = self._clock.now(), pod["metadata"]["uid"]
        in_use = simulatedmetrics.memory_in_use(self._fleet, pod, now=now)
        if not in_use:
            return None
        ended = ended_at(pod, script)
        if now < ended + freeing.LONGEST_SECONDS:
            if uid not in self._announced:
                self._announced.add(uid)
                message = freeing.waiting_message(_by_name(in_use))
                await self._record_event(pod, freeing.IN_USE, message, warning=True)
            return freeing.LOOK_SECONDS
        self._announced.add(uid)
        await self._leave(pod, script, ended)
        return None

    async def _leave(self, pod: Object, script: Script, ended: float) -> None:
        """Note the memory that a pod which goes leaves in use, and keep its GPUs from sale."""
        in_use = {}
        if script.linger:
            in_use = simulatedmetrics.memory_in_use(self._fleet, pod, now=self._clock.now())
        if not in_use:
            return
        node, percent = pod["spec"]["nodeName"], script.run(statuses.restarts(pod)).memory
        for device, memory in in_use.items():
            until = ended + script.linger
            self.leftovers[device] = Leftover(percent=percent, until=until, text=memory.taint)
        await self._taint(node)
        message = freeing.given_up_message(_by_name(in_use))
        about = await self._client.get(NODE, node)
        await self._recorder.record(self._client, about, freeing.NOT_FREED, message, type="Warning")

    # Status and Events.

    async def _report(
        self, pod: Object, phase: str, containers: statuses.Containers, *, started: str = ""
    ) -> None:
        """Write the pod's status."""
        now = rfc3339(self._clock.now())
        status = statuses.status(phase, containers, now=now, address=self._address, started=started)
        await self._patch(pod, {"status": status}, subresource="status")

    async def _patch(self, pod: Object, change: Object, *, subresource: str = "") -> None:
        """Patch the pod, unless it is gone."""
        metadata = pod["metadata"]
        bound = {**change, "metadata": {"uid": metadata["uid"], **change.get("metadata", {})}}
        with suppress(NotFound):
            await self._client.patch(
                POD, metadata["name"], bound, metadata["namespace"], subresource=subresource
            )

    async def _record_event(
        self, pod: Object, reason: str, message: str, *, warning: bool = False
    ) -> None:
        await self._recorder.record(
            self._client, pod, reason, message, type="Warning" if warning else "Normal"
        )


def _by_name(in_use: Mapping[str, MemoryInUse]) -> dict[str, MemoryInUse]:
    """Devices by their names, without their node's."""
    return {_split(device)[1]: memory for device, memory in in_use.items()}


def _keys(devices: Sequence[str]) -> list[Key]:
    """The keys of devices that a status names as POOL/NAME."""
    return [(DRIVER, *_split(device)) for device in devices]


def _split(device: str) -> tuple[str, str]:
    pool, _, name = device.rpartition("/")
    return pool, name
