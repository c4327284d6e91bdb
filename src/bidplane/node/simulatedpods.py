"""
The life of simulated pods: what their annotations say (`core.simulation`), by the clock.

It keeps no state of its own but the MIG instances of cards that are not there, and these follow
from the pods: after a restart it goes on from what the API says. A pod that began at ten and takes
a minute ends a minute past ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import POD, RESOURCE_CLAIM
from bidplane.core import simulation
from bidplane.core.parts import Key
from bidplane.core.simulation import BadScript, Run, Script, Stage
from bidplane.errors import NotFound, UserError
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, parse_rfc3339, rfc3339
from bidplane.machinery.events import Recorder
from bidplane.node import simulatedstatus as shown
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.inventory import DeclaredDevices, claimstatus
from bidplane.node.inventory.partitions import Partitions
from bidplane.node.inventory.slices import DRIVER

_SIGTERM_EXIT_CODE = 143
_RESTART_SECONDS = 1.0  # between two restarts, at least: statuses count in seconds
_RETRY_SECONDS = 10.0  # for devices that could not be prepared
_FINISHED = ("Succeeded", "Failed")


class SimulatedPods:
    """Of all nodes of a fleet."""

    def __init__(
        self, client: Client, fleet: Fleet, recorder: Recorder, *, clock: Clock, address: str
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._address = address
        self._seed = str(fleet.seed)
        self._nodes: Mapping[str, NodeDeclaration] = {
            node.name: node for node in fleet.nodes if node.mig
        }
        self._cut: dict[str, Partitions] = {}  # by node, once a part of it was claimed

    def partitions(self, node: str) -> Partitions | None:
        """The instances of a node's cards; None where these cannot be cut."""
        declared = self._nodes.get(node)
        if declared is not None and node not in self._cut:
            devices = DeclaredDevices(declared)
            cards = devices.instances(None)
            assert cards is not None
            made = Partitions(cards)
            made.slices_are(devices.slices())
            self._cut[node] = made
        return self._cut.get(node)

    async def gone(self, pod: Object) -> None:
        """The API forgot it: nothing of it is left."""
        await self._leave(pod)

    async def step(self, pod: Object) -> float | None:
        """What is due for a pod; seconds until something is again."""
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if pod["metadata"].get("deletionTimestamp"):
            return await self._stop(pod, phase)
        if phase in _FINISHED:
            await self._leave(pod)
            return None
        try:
            script = simulation.read(pod, seed=self._seed)
        except BadScript as error:
            await self._refuse(pod, phase, str(error))
            return None
        if phase == "Pending":
            return await self._begin(pod, script)
        await self._hold_again(pod)
        await self._maybe_save(pod, script)
        return await self._go_on(pod, script)

    async def _refuse(self, pod: Object, phase: str, problem: str) -> None:
        """What cannot be read is not guessed. What runs already goes on, until it is deleted."""
        await self._say(pod, "BadAnnotation", problem, warning=True)
        if phase == "Pending":
            told = {"phase": "Failed", "reason": "BadAnnotation", "message": problem}
            await self._patch(pod, {"status": told}, subresource="status")

    # From created to running.

    async def _begin(self, pod: Object, script: Script) -> float | None:
        now = self._clock.now()
        run = script.run(0)
        begun = (pod.get("status") or {}).get("startTime")
        left = parse_rfc3339(begun) + run.start - now if begun else run.start
        if begun and left > 0:
            await self._hold_again(pod)
            return left
        try:
            devices = await self._prepare(pod)
        except UserError as error:
            await self._say(pod, "FailedPrepareDynamicResources", str(error), warning=True)
            await self._report(pod, "Pending", shown.waiting(pod, str(error)))
            return _RETRY_SECONDS
        began = rfc3339(now)
        if left > 0:
            await self._report(pod, "Pending", shown.waiting(pod, "", devices), started=began)
            return left
        containers = shown.running(pod, began, devices, ready=run.load == 0)
        await self._report(pod, "Running", containers, started=begun or began)
        node = pod["spec"]["nodeName"]
        await self._say(
            pod, "Started", f"simulated on {node} with {', '.join(devices) or 'no GPU'}"
        )
        return None  # the write wakes us

    async def _prepare(self, pod: Object) -> list[str]:
        """The devices that are claimed for a pod, MIG instances made; raises `UserError`."""
        namespace = pod["metadata"]["namespace"]
        claims = [
            await self._client.get(RESOURCE_CLAIM, claim["resourceClaimName"], namespace)
            for claim in pod["spec"].get("resourceClaims") or ()
        ]
        keys = [key for claim in claims for key in claimstatus.allocated(claim)]
        cards = self.partitions(pod["spec"]["nodeName"])
        if cards is not None and cards.concern(keys):
            now = self._clock.now()
            try:
                made = await cards.take(pod["metadata"]["uid"], keys)
            except UserError as error:
                for claim in claims:
                    await claimstatus.tell(
                        self._client, claim, {}, failed=keys, problem=str(error), now=now
                    )
                raise
            for claim in claims:
                await claimstatus.tell(self._client, claim, made, now=now)
        # Those of other drivers are beside its GPUs, and theirs to prepare.
        return [f"{pool}/{device}" for driver, pool, device in keys if driver == DRIVER]

    async def _hold_again(self, pod: Object) -> None:
        """After a restart of the node: what a pod has, its cards have."""
        cards = self.partitions(pod["spec"]["nodeName"])
        keys = _keys(shown.devices_of(pod))
        if cards is not None and cards.concern(keys):
            with suppress(UserError):  # then it is shown as lost by whoever looks
                await cards.take(pod["metadata"]["uid"], keys)

    async def _leave(self, pod: Object) -> None:
        cards = self._cut.get(pod["spec"].get("nodeName", ""))
        if cards is not None:
            await cards.leave(pod["metadata"]["uid"])

    # From running to ended.

    async def _go_on(self, pod: Object, script: Script) -> float | None:
        """Ready once it has loaded, over once its time is; else how long until then."""
        number = shown.restarts(pod)
        run = script.run(number)
        began = parse_rfc3339(shown.began_at(pod))
        over = run.ends_after
        policy = pod["spec"].get("restartPolicy", "Always")
        again = policy == "Always" or (policy == "OnFailure" and run.code != 0)
        if again:
            over = max(over, _RESTART_SECONDS)
        now = self._clock.now()
        if now < began + over:
            if run.stage(now - began) is Stage.LOADING:
                return min(run.load, over) - (now - began)
            if not shown.is_ready(pod):
                devices = shown.devices_of(pod)
                containers = shown.running(
                    pod, shown.began_at(pod), devices, ready=True, restarts=number
                )
                await self._report(pod, "Running", containers)
            return began + over - now if math.isfinite(over) else None
        if again:
            await self._run_again(pod, run, script.run(number + 1), number + 1)
            return None
        phase = "Succeeded" if run.code == 0 else "Failed"
        # When it ended, though the node may have been away: not when that was noticed.
        await self._leave(pod)
        await self._report(pod, phase, shown.ended(pod, rfc3339(began + over), run.code))
        return None

    async def _run_again(self, pod: Object, before: Run, run: Run, number: int) -> None:
        now = rfc3339(self._clock.now())
        containers = shown.running(
            pod, now, shown.devices_of(pod), ready=run.load == 0, restarts=number
        )
        last = {"terminated": shown.terminated(pod, now, before.code)}
        await self._report(pod, "Running", [{**one, "lastState": last} for one in containers])

    async def _maybe_save(self, pod: Object, script: Script) -> None:
        """On notice, what a checkpoint command would save is written down."""
        notes = pod["metadata"].get("annotations") or {}
        command = notes.get(labels.CHECKPOINT_COMMAND)
        if labels.NOTICE not in notes or not command or labels.CHECKPOINT in notes:
            return
        now = self._clock.now()
        run = script.run(shown.restarts(pod))
        done = max(0.0, now - parse_rfc3339(shown.began_at(pod)) - run.load) + script.done
        said = {
            labels.CHECKPOINT: f"{rfc3339(now)} exit 0 (simulated)",
            labels.SIMULATED_SAVED: str(int(done)),
        }
        await self._patch(pod, {"metadata": {"annotations": said}})
        await self._say(pod, "Checkpointed", f"simulated: {command}")

    async def _stop(self, pod: Object, phase: str) -> float | None:
        metadata = pod["metadata"]
        over: float = parse_rfc3339(metadata["deletionTimestamp"])
        if phase == "Running":
            asked: float = over - metadata.get("deletionGracePeriodSeconds", 0)
            left = min(over, asked + self._obeys_after(pod)) - self._clock.now()
            if left > 0:
                return left
            now = rfc3339(self._clock.now())
            await self._report(pod, "Failed", shown.ended(pod, now, _SIGTERM_EXIT_CODE))
        await self._leave(pod)
        with suppress(NotFound):
            await self._client.delete(
                POD,
                metadata["name"],
                metadata["namespace"],
                grace_seconds=0,
                uid=metadata["uid"],
            )
        return None

    def _obeys_after(self, pod: Object) -> float:
        try:
            return simulation.read(pod).shutdown
        except BadScript:
            return Script().shutdown

    # Telling.

    async def _report(
        self, pod: Object, phase: str, containers: shown.Containers, *, started: str = ""
    ) -> None:
        now = rfc3339(self._clock.now())
        told = shown.status(phase, containers, now=now, address=self._address, started=started)
        await self._patch(pod, {"status": told}, subresource="status")

    async def _patch(self, pod: Object, change: dict[str, Any], **more: Any) -> None:
        metadata = pod["metadata"]
        bound = {**change, "metadata": {"uid": metadata["uid"], **change.get("metadata", {})}}
        with suppress(NotFound):
            await self._client.patch(POD, metadata["name"], bound, metadata["namespace"], **more)

    async def _say(self, pod: Object, reason: str, message: str, *, warning: bool = False) -> None:
        await self._recorder.record(
            self._client, pod, reason, message, type="Warning" if warning else "Normal"
        )


def _keys(devices: Sequence[str]) -> list[Key]:
    return [(DRIVER, *_split(device)) for device in devices]


def _split(device: str) -> tuple[str, str]:
    pool, _, name = device.rpartition("/")
    return pool, name
