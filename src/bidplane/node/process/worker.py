"""
The worker of one pod: looks, decides (`core.pods.life`), acts, reports.

It is woken by every change (the pod's, a process's, a probe's) and by the clock, and may
be woken for nothing. What it must remember is in the pod's folder; a new agent makes a
worker from that folder and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from bidplane.core.pods import life, status
from bidplane.core.pods import spec as specs
from bidplane.core.pods import storage as storage_limits
from bidplane.core.pods.environment import ConfigError
from bidplane.core.pods.life import Halt, Stage
from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.machinery.events import Recorder
from bidplane.node.process import checkpoint
from bidplane.node.process.provisions import Provisions
from bidplane.node.process.records import Notes, PodFolder
from bidplane.node.process.runs import Launcher
from bidplane.node.process.settings import Settings
from bidplane.node.process.starting import Starter
from bidplane.node.process.storage import Storage
from bidplane.node.process.supplies import (
    Device,
    Present,
    Supplies,
    device_status,
    is_lost,
    of_container,
)
from bidplane.node.process.telling import Teller
from bidplane.node.process.unit import Unit
from bidplane.node.process.users import Users

log = structlog.get_logger(__name__)


class Worker:
    def __init__(
        self,
        pod: Object,
        *,
        client: Client,
        settings: Settings,
        supplies: Supplies,
        present: Callable[[], Present],
        recorder: Recorder,
        launcher: Launcher,
        users: Users,
        clock: Clock,
    ) -> None:
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
        self._gone = False  # the API no longer has it
        self._released = False
        self._lost_devices: set[tuple[str, str, str]] = set()
        self._saving: asyncio.Task[None] | None = None  # the checkpoint, once it is due
        self.storage = Storage(lambda: self.pod, self.folder, clock)
        self._teller = Teller(lambda: self.pod, client, recorder)
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
            say=self._teller.say,
        )
        self.units: dict[str, Unit] = {}
        self._find_units()

    def __repr__(self) -> str:
        metadata = self.pod["metadata"]
        return f"<Worker {metadata['namespace']}/{metadata['name']} {self._stage}>"

    def _find_units(self) -> None:
        """One for each container; ephemeral ones may join at any time."""
        for spec, role in specs.containers(self.pod):
            if spec["name"] not in self.units:
                self.units[spec["name"]] = Unit(
                    spec,
                    role,
                    engine=self._settings.engine,
                    clock=self._clock,
                    wake=self.wake,
                    say=self._teller.say,
                    target=self.units.get(spec.get("targetContainerName") or ""),
                )

    @property
    def _stage(self) -> Stage:
        return self._notes.record.stage

    @property
    def devices(self) -> Sequence[Device]:
        """What was allocated to it."""
        return self._provisions.devices

    def wake(self) -> None:
        self._woken.set()

    def update(self, pod: Object) -> None:
        """The API's newest."""
        if _told_in_files(pod) != _told_in_files(self.pod):
            self._provisions.refresh_at = 0.0
        self.pod = pod
        self._find_units()
        self.wake()

    def vanished(self) -> None:
        """The API forgot it: it is to end, and there is nobody to tell."""
        self._gone = True
        self.wake()

    # The loop.

    async def run(self) -> None:
        """Until nothing of the pod is left."""
        failures = 0
        try:
            while True:
                self._woken.clear()
                try:
                    again = await self._step()
                    failures = 0
                except ApiError as error:
                    failures += 1
                    again = self._clock.now() + min(0.1 * 2**failures, 10.0)
                    log.debug("retrying", pod=repr(self), error=str(error))
                except Exception as error:  # one pod's trouble must not stop the others
                    failures += 1
                    again = self._clock.now() + min(2.0**failures, 60.0)
                    log.error("bug in a pod's worker", pod=repr(self), exc_info=error)
                if self._stage is Stage.REMOVED:
                    return
                await self._wait(again)
        finally:
            await self.storage.weigh_no_more()
            for unit in self.units.values():
                await unit.close()
            await self._provisions.close()
            await self._teller.close()

    async def _wait(self, until: float | None) -> None:
        if self._woken.is_set():
            return
        woken = asyncio.ensure_future(self._woken.wait())
        waits: set[asyncio.Future[Any]] = {woken}
        if until is not None:
            left = max(until - self._clock.now(), 0.0)
            waits.add(asyncio.ensure_future(self._clock.sleep(left)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _step(self) -> float | None:
        """Look, decide, act, report; returns when to look again."""
        now = self._clock.now()
        if self._notes.record.start_time is None:
            self._notes.keep(start_time=self._known_start() or now)
        for unit in self.units.values():
            unit.look()
        self._save_on_notice()
        self._halt(now)
        times = await self._provide(now)
        decision = life.decide(self._life(), now=now)
        self._notes.keep(stage=decision.stage)
        times += await self._act(decision, now)
        if self._stage is Stage.ENDED:
            await self._release()
        await self._report()
        if self._stage is Stage.ENDED:
            if self._deleted():
                await self._remove()
            return None
        return min(times, default=None)

    async def _provide(self, now: float) -> list[float]:
        """See to what it needs; returns when to look again at that."""
        provisions = self._provisions
        if self._stage is Stage.ENDED:
            if not provisions.complete:
                provisions.complete = True
                await self._starter.find_again(self.units.values())
            return []
        if not provisions.complete:
            return await self._prepare(now)
        if now >= provisions.refresh_at:
            try:
                await provisions.refresh(self.pod)
            except (ConfigError, OSError) as error:
                # What runs keeps what it has.
                self._teller.say("FailedMount", str(error), True)
        return [provisions.refresh_at]

    async def _act(self, decision: life.Decision, now: float) -> list[float]:
        """Carry out what was decided; returns when to look again."""
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

    def _life(self) -> life.Pod:
        return life.Pod(
            stage=self._stage,
            containers=[unit.facts() for unit in self.units.values()],
            restart_policy=self.pod["spec"].get("restartPolicy") or "Always",
            grace_seconds=specs.grace_seconds(self.pod),
            prepared=self._provisions.complete,
            halt=self._notes.record.halt,
        )

    def _known_start(self) -> float | None:
        told = (self.pod.get("status") or {}).get("startTime")
        return parse_rfc3339(told) if told else None

    # What ends it.

    def _deleted(self) -> bool:
        return self._gone or bool(self.pod["metadata"].get("deletionTimestamp"))

    def _deadline(self) -> float | None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None or self._notes.record.start_time is None:
            return None
        return self._notes.record.start_time + float(seconds)

    def _halt(self, now: float) -> None:
        deadline = self._deadline()
        if deadline is not None and now >= deadline:
            self._end_it(
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
                specs.grace_seconds(self.pod),
            )
        if self.storage.overuse:
            self._end_it(storage_limits.REASON, self.storage.overuse, storage_limits.GRACE_SECONDS)
        if self._deleted():
            halt = self._notes.record.halt
            given = self.pod["metadata"].get("deletionGracePeriodSeconds")
            grace = specs.grace_seconds(self.pod) if given is None else float(given)
            until = now + grace
            if halt is None:
                self._notes.keep(halt=Halt(until=until))
            elif until < halt.until:
                self._notes.keep(halt=msgspec.structs.replace(halt, until=until))
                for unit in self.units.values():
                    unit.hurry(until)

    def _end_it(self, reason: str, message: str, grace: float) -> None:
        """It fails, unless it is ending anyway."""
        if self._notes.record.halt is None and self._stage not in (Stage.ENDING, Stage.ENDED):
            until = self._clock.now() + grace
            self._notes.keep(halt=Halt(reason=reason, message=message, until=until))
            self._teller.say(reason, message, True)

    # What it needs.

    async def _prepare(self, now: float) -> list[float]:
        provisions = self._provisions
        if self._notes.record.halt is not None and not self._ever_started():
            return []
        if now < provisions.retry_at:
            return [provisions.retry_at]
        refusal = provisions.refusal(self.pod)
        if refusal is not None and self._notes.record.halt is None:
            self._end_it(*refusal, 0.0)
            return []
        try:
            await provisions.gather(self.pod)
        except (ConfigError, OSError) as error:
            if not self._ever_started():
                provisions.try_later(str(error))
                self._teller.say(_mount_reason(str(error)), str(error), True)
                return [provisions.retry_at]
            provisions.complete = True
        await self._starter.find_again(self.units.values())
        self.storage.weigh(self.wake)
        return [provisions.refresh_at]

    def _ever_started(self) -> bool:
        return any(self.folder.attempts(name) for name in self.units)

    # Telling.

    async def _report(self) -> None:
        self._note_lost_devices()
        if self._gone:
            return
        devices = self._provisions.devices
        where = status.Where(
            host_ip=self._settings.host_ip,
            pod_ip=self._provisions.address,
            start_time=self._notes.record.start_time,
            devices={
                name: device_status(of_container(unit.spec, devices), self._present())
                for name, unit in self.units.items()
            },
            waiting=self._provisions.waiting,
        )
        told = status.compose(self.pod, self._life(), where, now=self._clock.now())
        try:
            self.pod = await self._teller.report(told) or self.pod
        except NotFound:
            self.vanished()

    def _note_lost_devices(self) -> None:
        present = self._present()
        for device in self._provisions.devices:
            lost = is_lost(device, present)
            if lost and device.key not in self._lost_devices:
                self._lost_devices.add(device.key)
                self._teller.say(
                    "DeviceLost",
                    f"the device {device.pool}/{device.device} is no longer on this node",
                    True,
                )
            elif not lost:
                self._lost_devices.discard(device.key)

    def _save_on_notice(self) -> None:
        """Once, beside the first container; nothing waits for it here."""
        if self._saving is not None or self._deleted() or not checkpoint.is_due(self.pod):
            return
        first = self.pod["spec"]["containers"][0]["name"]
        if not self.units[first].facts().running:
            return

        async def save(unit: Unit) -> None:
            said = await checkpoint.take(self._client, self.pod, unit, clock=self._clock)
            self._teller.say("Checkpointed", f"its checkpoint command: {said}", said != "exit 0")

        self._saving = asyncio.create_task(save(self.units[first]))

    # The end.

    async def _release(self) -> None:
        """Its processes have ended; its logs stay until it is deleted."""
        if not self._released:
            self._released = True
            await self.storage.weigh_no_more()
            await self._provisions.release(self.pod)

    async def _remove(self) -> None:
        """Nothing of it runs, and the API knows: leave nothing behind."""
        if not self._gone:
            await self._teller.gone()
        await asyncio.to_thread(self.folder.remove)  # the disk may be busy, and others wait
        self._users.release(self.uid)
        # Not written down any more: there is no folder.
        self._notes.record = msgspec.structs.replace(
            self._notes.record, stage=life.advance(self._stage, life.Event.DELETED)
        )


def _told_in_files(pod: Object) -> tuple[Any, Any]:
    """What a downward API volume may show and an owner may change."""
    return pod["metadata"].get("labels"), pod["metadata"].get("annotations")


def _mount_reason(message: str) -> str:
    return "FailedMount" if message.startswith("MountVolume") else "FailedPrepareDynamicResources"
