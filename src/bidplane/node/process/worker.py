"""
The worker of one pod: observes, decides (`core.pods.life`), acts, reports.

Every change (of the pod, a process, a probe) and the clock wake it; it may wake without a
change. Its state is in the pod's folder, from which a restarted agent makes a new worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from bidplane.api.objects import is_deleted
from bidplane.api.times import parse_rfc3339
from bidplane.core.pods import life, status
from bidplane.core.pods import spec as specs
from bidplane.core.pods import storage as storage_limits
from bidplane.core.pods.environment import ConfigError
from bidplane.core.pods.life import Halt, PodStage
from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder
from bidplane.node.process.container import checkpoint
from bidplane.node.process.container.container import Unit
from bidplane.node.process.container.shims import Launcher
from bidplane.node.process.container.starting import Starter
from bidplane.node.process.gpumemory import GpuMemory, Release
from bidplane.node.process.provisions import Provisions
from bidplane.node.process.records import Notes, PodFolder
from bidplane.node.process.reporting import PodReporter
from bidplane.node.process.sandbox.users import Users
from bidplane.node.process.settings import ProcessSettings
from bidplane.node.process.supplies import (
    ClaimedDevice,
    Present,
    Supplies,
    container_devices,
    device_status,
    is_lost,
)
from bidplane.node.process.volumes.quota import Storage

log = structlog.get_logger(__name__)


class PodWorker:
    def __init__(
        self,
        pod: Object,
        *,
        client: KubeClient,
        settings: ProcessSettings,
        supplies: Supplies,
        present: Callable[[], Present],
        recorder: Recorder,
        launcher: Launcher,
        users: Users,
        clock: Clock,
        memory: GpuMemory | None = None,
        siblings: Callable[[], Iterable[PodWorker]] = tuple,
    ) -> None:
        """Run `pod`; `siblings`: the workers of the node's other pods, which may share a GPU."""
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.folder = PodFolder(settings.pods, self.uid)
        self.folder.create()
        self.folder.save_pod(pod)
        self._client = client
        self._settings = settings
        self._users = users
        self._present = present
        self._clock = clock
        self._woken = asyncio.Event()
        self._notes = Notes(self.folder)
        self._absent = False  # the API no longer has the pod
        self._released = False
        self._lost_devices: set[tuple[str, str, str]] = set()
        self._saving: asyncio.Task[None] | None = None  # the checkpoint, once it is due
        self.storage = Storage(lambda: self.pod, self.folder, clock)
        self._reporter = PodReporter(lambda: self.pod, client, recorder)
        self._provisions = Provisions(
            self.folder,
            self._notes,
            settings=settings,
            supplies=supplies,
            users=users,
            clock=clock,
        )
        self._starter = Starter(
            lambda: self.pod,
            self.folder,
            self._provisions,
            settings=settings,
            present=present,
            launcher=launcher,
            clock=clock,
            say=self._reporter.say,
        )
        self._memory, self._siblings = memory, siblings
        self._free = Release(memory, self._reporter.say) if memory is not None else None
        self.units: dict[str, Unit] = {}
        self._find_units()

    def __repr__(self) -> str:
        metadata = self.pod["metadata"]
        return f"<Worker {metadata['namespace']}/{metadata['name']} {self._stage}>"

    def _find_units(self) -> None:
        """Make a unit for each new container; ephemeral ones may be added at any time."""
        for spec, role in specs.containers(self.pod):
            if spec["name"] not in self.units:
                self.units[spec["name"]] = Unit(
                    spec,
                    role,
                    engine=self._settings.engine,
                    clock=self._clock,
                    wake=self.wake,
                    say=self._reporter.say,
                    target=self.units.get(spec.get("targetContainerName") or ""),
                )

    @property
    def _stage(self) -> PodStage:
        return self._notes.record.stage

    @property
    def devices(self) -> Sequence[ClaimedDevice]:
        """The devices allocated to the pod."""
        return self._provisions.devices

    def wake(self) -> None:
        self._woken.set()

    def update(self, pod: Object) -> None:
        """Take the newest version of the pod from the API."""
        if _downward_metadata(pod) != _downward_metadata(self.pod):
            self._provisions.refresh_at = 0.0
        self.pod = pod
        self._find_units()
        self.wake()

    def mark_absent(self) -> None:
        """Note that the API no longer has the pod: it ends, and has no status to report."""
        self._absent = True
        self.wake()

    # The loop.

    async def run(self) -> None:
        """Run the pod until it is removed."""
        failures = 0
        try:
            while True:
                self._woken.clear()
                try:
                    wake_at = await self._step()
                    failures = 0
                except ApiError as error:
                    failures += 1
                    wake_at = self._clock.now() + min(0.1 * 2**failures, 10.0)
                    log.debug("retrying", pod=repr(self), error=str(error))
                except Exception as error:  # one pod's trouble must not stop the others
                    failures += 1
                    wake_at = self._clock.now() + min(2.0**failures, 60.0)
                    log.error("bug in a pod's worker", pod=repr(self), exc_info=error)
                if self._stage is PodStage.REMOVED:
                    return
                await self._wait(wake_at)
        finally:
            await self.storage.stop_watching()
            for unit in self.units.values():
                await unit.close()
            await self._provisions.close()
            await self._reporter.close()

    async def _wait(self, until: float | None) -> None:
        if self._woken.is_set():
            return
        woken = asyncio.ensure_future(self._woken.wait())
        waits: set[asyncio.Future[Any]] = {woken}
        if until is not None:
            seconds = max(until - self._clock.now(), 0.0)
            waits.add(asyncio.ensure_future(self._clock.sleep(seconds)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _step(self) -> float | None:
        """Observe, decide, act, report; return the time of the next step."""
        now = self._clock.now()
        if self._notes.record.start_time is None:
            self._notes.keep(start_time=self._known_start() or now)
        for unit in self.units.values():
            unit.refresh()
        self._save_on_notice()
        self._halt(now)
        times = await self._provide(now)
        decision = life.decide(self._life(), now=now)
        self._notes.keep(stage=decision.stage)
        times += await self._act(decision, now)
        if self._stage is PodStage.ENDED:
            await self._release()
            look_at = await self._wait_for_memory(now)
            if look_at is not None:
                return look_at  # it is not reported to have ended: its lease would end
        await self._report()
        if self._stage is PodStage.ENDED:
            if self._deleted():
                await self._remove()
            return None
        return min(times, default=None)

    async def _provide(self, now: float) -> list[float]:
        """Prepare or refresh the provisions; return the times of the next refresh."""
        provisions = self._provisions
        if self._stage is PodStage.ENDED:
            if not provisions.complete:
                provisions.complete = True
                await self._starter.restore_units(self.units.values())
            return []
        if not provisions.complete:
            return await self._prepare(now)
        if now >= provisions.refresh_at:
            try:
                await provisions.refresh(self.pod)
            except (ConfigError, OSError) as error:
                # Running containers keep their volumes.
                self._reporter.say("FailedMount", str(error), True)
        return [provisions.refresh_at]

    async def _act(self, decision: life.PodDecision, now: float) -> list[float]:
        """Carry out the decision; return the times of the next steps."""
        times = [decision.look_again] if decision.look_again is not None else []
        for operation in decision.operations:
            match operation:
                case life.Start(container, attempt, backoff):
                    later = await self._starter.start(self.units[container], attempt, backoff)
                    times.append(now if later is None else later)
                case life.Stop(container, until, message):
                    unit = self.units[container]
                    if unit.sick_grace is not None and self._notes.record.halt is None:
                        until = now + unit.sick_grace
                    unit.stop(until, message)
        deadline = self._deadline()
        if deadline is not None and self._notes.record.halt is None:
            times.append(deadline)
        return times

    def _life(self) -> life.PodState:
        return life.PodState(
            stage=self._stage,
            containers=[unit.facts() for unit in self.units.values()],
            restart_policy=self.pod["spec"].get("restartPolicy") or "Always",
            grace_seconds=specs.grace_seconds(self.pod),
            prepared=self._provisions.complete,
            halt=self._notes.record.halt,
        )

    def _known_start(self) -> float | None:
        reported = (self.pod.get("status") or {}).get("startTime")
        return parse_rfc3339(reported) if reported else None

    # Ending.

    def _deleted(self) -> bool:
        return self._absent or is_deleted(self.pod)

    def _deadline(self) -> float | None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None or self._notes.record.start_time is None:
            return None
        return self._notes.record.start_time + float(seconds)

    def _halt(self, now: float) -> None:
        deadline = self._deadline()
        if deadline is not None and now >= deadline:
            self._fail_pod(
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
                specs.grace_seconds(self.pod),
            )
        if self.storage.overuse:
            self._fail_pod(
                storage_limits.REASON, self.storage.overuse, storage_limits.GRACE_SECONDS
            )
        if self._deleted():
            halt = self._notes.record.halt
            requested = self.pod["metadata"].get("deletionGracePeriodSeconds")
            grace = specs.grace_seconds(self.pod) if requested is None else float(requested)
            until = now + grace
            if halt is None:
                self._notes.keep(halt=Halt(until=until))
            elif until < halt.until:
                self._notes.keep(halt=msgspec.structs.replace(halt, until=until))
                for unit in self.units.values():
                    unit.shorten_grace(until)

    def _fail_pod(self, reason: str, message: str, grace: float) -> None:
        """End the pod as failed, unless it is ending already."""
        if self._notes.record.halt is None and self._stage not in (PodStage.ENDING, PodStage.ENDED):
            until = self._clock.now() + grace
            self._notes.keep(halt=Halt(reason=reason, message=message, until=until))
            self._reporter.say(reason, message, True)

    # Preparing.

    async def _prepare(self, now: float) -> list[float]:
        provisions = self._provisions
        if self._notes.record.halt is not None and not self._ever_started():
            return []
        if now < provisions.retry_at:
            return [provisions.retry_at]
        refusal = provisions.refusal(self.pod)
        if refusal is not None and self._notes.record.halt is None:
            self._fail_pod(*refusal, 0.0)
            return []
        try:
            await provisions.gather(self.pod)
        except (ConfigError, OSError) as error:
            if not self._ever_started():
                provisions.schedule_retry(str(error))
                self._reporter.say(_mount_reason(str(error)), str(error), True)
                return [provisions.retry_at]
            provisions.complete = True
        await self._note_memory()
        await self._starter.restore_units(self.units.values())
        self.storage.watch_limits(self.wake)
        return [provisions.refresh_at]

    def _ever_started(self) -> bool:
        return any(self.folder.attempts(name) for name in self.units)

    # Reporting.

    async def _report(self) -> None:
        self._note_lost_devices()
        if self._absent:
            return
        devices = self._provisions.devices
        facts = status.StatusFacts(
            host_ip=self._settings.host_ip,
            pod_ip=self._provisions.address,
            start_time=self._notes.record.start_time,
            devices={
                name: device_status(container_devices(unit.spec, devices), self._present())
                for name, unit in self.units.items()
            },
            waiting=self._provisions.waiting,
        )
        pod_status = status.compose(self.pod, self._life(), facts, now=self._clock.now())
        try:
            self.pod = await self._reporter.report(pod_status) or self.pod
        except NotFound:
            self.mark_absent()

    def _note_lost_devices(self) -> None:
        present = self._present()
        for device in self._provisions.devices:
            lost = is_lost(device, present)
            if lost and device.key not in self._lost_devices:
                self._lost_devices.add(device.key)
                self._reporter.say(
                    "DeviceLost",
                    f"the device {device.pool}/{device.device} is no longer on this node",
                    True,
                )
            elif not lost:
                self._lost_devices.discard(device.key)

    def _save_on_notice(self) -> None:
        """Run the checkpoint command once, in the background, in the first container."""
        if self._saving is not None or self._deleted() or not checkpoint.is_due(self.pod):
            return
        first = self.pod["spec"]["containers"][0]["name"]
        if not self.units[first].facts().running:
            return

        async def save(unit: Unit) -> None:
            outcome = await checkpoint.take(self._client, self.pod, unit, clock=self._clock)
            self._reporter.say(
                "Checkpointed", f"its checkpoint command: {outcome}", outcome != "exit 0"
            )

        self._saving = asyncio.create_task(save(self.units[first]))

    # The end.

    async def _release(self) -> None:
        """Free what only processes need; the logs stay until the pod is deleted."""
        if not self._released:
            self._released = True
            await self.storage.stop_watching()
            await self._provisions.release(self.pod)

    @property
    def measured_gpus(self) -> Mapping[str, int]:
        """The memory in use on each of its GPUs before it started, by UUID."""
        return self._notes.record.memory_before or {}

    async def _note_memory(self) -> None:
        """Note the memory in use on the pod's GPUs before any of its containers starts."""
        if self._memory is None or self._notes.record.memory_before is not None:
            return
        if self._ever_started():  # by an earlier version, which noted nothing
            return
        present = self._present()
        gpus = [
            present[device.key]
            for device in self._provisions.devices
            if device.key in present and not device.uuid  # else a MIG instance
        ]
        self._notes.keep(memory_before=await self._memory.used(gpus))

    async def _wait_for_memory(self, now: float) -> float | None:
        """Return when to look again at its GPUs' memory; None if there is nothing to wait for."""
        if self._free is None:
            return None
        shared = {
            uuid
            for other in self._siblings()
            if other is not self and other._stage is not PodStage.ENDED
            for uuid in other.measured_gpus
        }
        own = {uuid: used for uuid, used in self.measured_gpus.items() if uuid not in shared}
        names = {uuid: device for (_, _, device), uuid in self._present().items()}
        return await self._free.wait(own, names, now=now, is_gone=self._absent)

    async def _remove(self) -> None:
        """Delete the pod from the API, and its folder and user from the node."""
        if not self._absent:
            await self._reporter.delete_pod()
        await asyncio.to_thread(self.folder.remove)  # the disk may be busy, and others wait
        self._users.release(self.uid)
        # Not saved: the folder is gone.
        self._notes.record = msgspec.structs.replace(
            self._notes.record, stage=life.advance(self._stage, life.PodEvent.DELETED)
        )


def _downward_metadata(pod: Object) -> tuple[Any, Any]:
    """Return the metadata that a downward API volume shows and that can change."""
    return pod["metadata"].get("labels"), pod["metadata"].get("annotations")


def _mount_reason(message: str) -> str:
    return "FailedMount" if message.startswith("MountVolume") else "FailedPrepareDynamicResources"
