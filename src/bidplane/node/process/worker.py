"""
The worker of one pod: looks, decides (`core.pods.life`), acts, reports.

It is woken by every change (the pod's, a process's, a probe's) and by the clock, and may
be woken for nothing. What it must remember is in the pod's folder; a new agent makes a
worker from that folder and goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from bidplane.api.kinds import POD
from bidplane.core.pods import life, status
from bidplane.core.pods import spec as specs
from bidplane.core.pods.environment import ConfigError, Facts
from bidplane.core.pods.life import Halt, Obstacle, Stage
from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.machinery.events import Recorder
from bidplane.node.process import checkpoint
from bidplane.node.process.addresses import Place
from bidplane.node.process.confine import Confined
from bidplane.node.process.dressing import (
    NotMapped,
    Outfit,
    Supplied,
    container_name,
    dress,
    missing_command,
)
from bidplane.node.process.records import Attempt, PodFolder
from bidplane.node.process.runs import Launcher
from bidplane.node.process.settings import Settings, memory_bytes
from bidplane.node.process.supplies import (
    Device,
    Supplies,
    device_status,
    of_container,
)
from bidplane.node.process.unit import Unit

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFRESH_SECONDS = 30.0  # volumes made from objects follow these
_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 30.0
_OBSTACLE_SECONDS = 10.0
_MESSAGE_PATH = "/dev/termination-log"
_CANNOT_START = 128
_TAKE_OVER_SECONDS = 0.01

log = structlog.get_logger(__name__)

Present = Callable[[], Mapping[tuple[str, str, str], str]]  # the node's devices, and their UUIDs


class Worker:
    def __init__(
        self,
        pod: Object,
        *,
        client: Client,
        settings: Settings,
        supplies: Supplies,
        present: Present,
        recorder: Recorder,
        launcher: Launcher,
        clock: Clock,
    ) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.folder = PodFolder(settings.pods, self.uid)
        self.folder.create()
        self.folder.save_pod(pod)
        self._client = client
        self._settings = settings
        self._supplies = supplies
        self._present = present
        self._recorder = recorder
        self._launcher = launcher
        self._clock = clock
        self._woken = asyncio.Event()
        self._record = self.folder.record()
        self._gone = False  # the API no longer has it
        self._prepared = False
        self._released = False
        self._waiting: Obstacle | None = None
        self._prepare_at = 0.0
        self._prepare_failures = 0
        self._refresh_at = 0.0
        self._supplied: Supplied | None = None
        self._told: dict[str, Any] | None = None
        self._lost_devices: set[tuple[str, str, str]] = set()
        self._sayings: set[asyncio.Task[None]] = set()
        self._saving: asyncio.Task[None] | None = None  # the checkpoint, once it is due
        self.units = {
            spec["name"]: Unit(
                spec,
                role,
                engine=settings.engine,
                clock=clock,
                wake=self.wake,
                say=self._say,
            )
            for spec, role in specs.containers(pod)
        }

    def __repr__(self) -> str:
        metadata = self.pod["metadata"]
        return f"<Worker {metadata['namespace']}/{metadata['name']} {self._record.stage}>"

    def wake(self) -> None:
        self._woken.set()

    def update(self, pod: Object) -> None:
        """The API's newest."""
        self.pod = pod
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
                if self._record.stage is Stage.REMOVED:
                    return
                await self._wait(again)
        finally:
            for unit in self.units.values():
                await unit.close()
            await asyncio.gather(*self._sayings, return_exceptions=True)

    async def _wait(self, until: float | None) -> None:
        if self._woken.is_set():
            return
        woken = asyncio.ensure_future(self._woken.wait())
        waits = {woken}
        if until is not None:
            left = max(until - self._clock.now(), 0.0)
            waits.add(asyncio.ensure_future(self._slept(left)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _slept(self, seconds: float) -> Any:
        await self._clock.sleep(seconds)
        return True

    async def _step(self) -> float | None:
        """Look, decide, act, report; returns when to look again."""
        now = self._clock.now()
        if self._record.start_time is None:
            self._keep(start_time=self._known_start() or now)
        for unit in self.units.values():
            unit.look()
        self._save_on_notice()
        self._halt(now)
        times: list[float] = []
        if self._record.stage is Stage.ENDED:
            if not self._prepared:
                self._prepared = True
                await self._find_again()
        elif not self._prepared:
            times += await self._prepare(now)
        elif now >= self._refresh_at:
            await self._refresh()
        decision = life.decide(self._life(), now=now)
        self._keep(stage=decision.stage)
        for operation in decision.operations:
            match operation:
                case life.Start(container, attempt, backoff):
                    times += await self._start(self.units[container], attempt, backoff)
                case life.Stop(container, until, message):
                    unit = self.units[container]
                    if unit.sick_grace is not None and self._record.halt is None:
                        until = now + unit.sick_grace
                    unit.stop(until, message)
        if decision.look_again is not None:
            times.append(decision.look_again)
        if self._record.stage is Stage.ENDED:
            await self._release()
        await self._report()
        if self._record.stage is Stage.ENDED and self._deleted():
            await self._remove()
            return None
        if decision.operations and any(isinstance(o, life.Start) for o in decision.operations):
            times.append(self._clock.now() + 1.0 if times else self._clock.now())
        deadline = self._deadline()
        if deadline is not None and self._record.halt is None:
            times.append(deadline)
        if self._prepared and self._record.stage is not Stage.ENDED:
            times.append(self._refresh_at)
        return min(times, default=None)

    def _life(self) -> life.Pod:
        return life.Pod(
            stage=self._record.stage,
            containers=[unit.facts() for unit in self.units.values()],
            restart_policy=self.pod["spec"].get("restartPolicy") or "Always",
            grace_seconds=specs.grace_seconds(self.pod),
            prepared=self._prepared,
            halt=self._record.halt,
        )

    def _keep(self, **changes: Any) -> None:
        changed = msgspec.structs.replace(self._record, **changes)
        if changed != self._record:
            self._record = changed
            self.folder.save(changed)

    def _known_start(self) -> float | None:
        told = (self.pod.get("status") or {}).get("startTime")
        return parse_rfc3339(told) if told else None

    # What ends it.

    def _deleted(self) -> bool:
        return self._gone or bool(self.pod["metadata"].get("deletionTimestamp"))

    def _deadline(self) -> float | None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None or self._record.start_time is None:
            return None
        return self._record.start_time + float(seconds)

    def _halt(self, now: float) -> None:
        halt = self._record.halt
        deadline = self._deadline()
        ended = self._record.stage in (Stage.ENDING, Stage.ENDED)
        if halt is None and deadline is not None and now >= deadline and not ended:
            self._end_it(
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
                specs.grace_seconds(self.pod),
            )
            halt = self._record.halt
        if self._deleted():
            given = self.pod["metadata"].get("deletionGracePeriodSeconds")
            grace = specs.grace_seconds(self.pod) if given is None else float(given)
            until = now + grace
            if halt is None:
                self._keep(halt=Halt(until=until))
            elif until < halt.until:
                self._keep(halt=msgspec.structs.replace(halt, until=until))
                for unit in self.units.values():
                    unit.hurry(until)

    def _end_it(self, reason: str, message: str, grace: float) -> None:
        until = self._clock.now() + grace
        self._keep(halt=Halt(reason=reason, message=message, until=until))
        self._say(reason, message, True)

    # What it needs.

    def _refusal(self) -> tuple[str, str] | None:
        """Why this node does not run it, whatever happens."""
        engine = self._settings.engine
        if not engine.sandboxed and not self._settings.trusts(self.pod):
            return "NoSandbox", (
                "this node has no bubblewrap, so it runs only pods it trusts:"
                f" start it with --trusted {self.pod['metadata']['namespace']},"
                " or install bubblewrap"
            )
        for problem in specs.problems(self.pod):
            return "Unsupported", f"this node cannot run the pod: {problem}"
        for container, _ in specs.containers(self.pod):
            if (container.get("securityContext") or {}).get("privileged") and (
                not self._settings.trusts(self.pod)
            ):
                return "Forbidden", f"container {container['name']}: privileged is for trusted pods"
        return None

    async def _prepare(self, now: float) -> list[float]:
        if self._record.halt is not None and not self._ever_started():
            return []
        if now < self._prepare_at:
            return [self._prepare_at]
        refusal = self._refusal()
        if refusal is not None and self._record.halt is None:
            self._end_it(*refusal, 0.0)
            return []
        try:
            await self._supply()
        except (ConfigError, OSError) as error:
            if self._ever_started():
                # What it was made from is gone; that is no reason to lose what runs.
                self._prepared = True
                await self._find_again()
                return []
            self._prepare_failures += 1
            wait = min(_FIRST_RETRY_SECONDS * 2**self._prepare_failures, _LAST_RETRY_SECONDS)
            self._prepare_at = self._clock.now() + wait
            self._waiting = Obstacle("ContainerCreating", str(error))
            self._say(_mount_reason(str(error)), str(error), True)
            return [self._prepare_at]
        self._prepared, self._waiting = True, None
        self._refresh_at = self._clock.now() + _REFRESH_SECONDS
        await self._find_again()
        return []

    def _ever_started(self) -> bool:
        return any(self.folder.attempts(name) for name in self.units)

    async def _supply(self) -> None:
        settings = self._settings
        if self.pod["spec"].get("hostNetwork"):
            place = Place(settings.host_ip)
        elif self._record.address:
            place = settings.network.find(self.uid, self._record.address)
        else:
            place = await settings.network.join(self.uid)
            self._keep(address=place.address)
        self._keep(uid=settings.user_for(self.uid))
        # At least where it is: what runs is found again though what it was made from is gone.
        self._supplied = Supplied(place=place, facts=self._facts(place), user=self._record.uid)
        devices = await self._supplies.devices(self.pod)
        self._supplied = msgspec.structs.replace(self._supplied, devices=devices)
        await self._refresh_supplied()

    async def _refresh_supplied(self) -> None:
        assert self._supplied is not None
        sources = await self._supplies.sources(self.pod)
        volumes = await self._supplies.volumes(
            self.pod, self.folder, sources, self._supplied.facts, self._record.uid
        )
        self._supplied = msgspec.structs.replace(self._supplied, sources=sources, volumes=volumes)

    async def _refresh(self) -> None:
        """Config maps, secrets and tokens may have changed."""
        self._refresh_at = self._clock.now() + _REFRESH_SECONDS
        try:
            await self._refresh_supplied()
        except (ConfigError, OSError) as error:
            # What runs keeps what it has.
            self._say("FailedMount", str(error), True)

    def _facts(self, place: Place) -> Facts:
        return Facts(
            pod_ip=place.address,
            host_ip=self._settings.host_ip,
            node_cpus=os.cpu_count() or 1,
            node_memory=memory_bytes(),
        )

    async def _find_again(self) -> None:
        """After a restart of the agent: what runs, what ended, what was never started."""
        known = {
            one["name"]: one
            for field in ("initContainerStatuses", "containerStatuses")
            for one in (self.pod.get("status") or {}).get(field) or ()
        }
        for unit in self.units.values():
            attempts = self.folder.attempts(unit.name)
            if not attempts or unit.attempt is not None:
                continue
            if len(attempts) > 1:
                unit.previous = attempts[-2].run()
            last = attempts[-1]
            run = last.run()
            if not run.running:
                unit.found_over(last)
            elif not last.begun():
                # It was decided and not done.
                await self._start(unit, last.number, run.backoff)
            else:
                self._dress_again(unit, last)
                await self._take_over(unit, last, known.get(unit.name))

    async def _take_over(self, unit: Unit, attempt: Attempt, known: Object | None = None) -> None:
        """Follow what another agent started, or was starting when it ended."""
        while attempt.state() is None and attempt.run().running and attempt.supervised():
            await asyncio.sleep(_TAKE_OVER_SECONDS)
        if attempt.state() is not None:
            unit.began(attempt, hook=False, known=known)
            return
        if attempt.run().running:
            attempt.lost(self._clock.now())
        unit.found_over(attempt)

    # Starting a container.

    async def _start(self, unit: Unit, number: int, backoff: float) -> list[float]:
        now = self._clock.now()
        if unit.obstacle is not None and now < unit.retry_at:
            return [unit.retry_at]
        attempt = self.folder.attempt(unit.name, number)
        try:
            self._check_devices(unit)
            outfit = self._dress(unit, attempt)
        except NotMapped as error:
            return self._cannot(unit, "ErrImageNeverPull", str(error))
        except (ConfigError, KeyError) as error:
            return self._cannot(unit, "CreateContainerConfigError", str(error))
        if unit.run is not None and not unit.run.running:
            unit.previous = unit.run
        attempt.create(now, backoff)
        self._make_message_file(attempt)
        self.folder.forget_old(unit.name)
        unit.obstacle = None
        missing = missing_command(outfit, self._settings)
        if missing:
            attempt.mark_failed(_CANNOT_START, "StartError", missing, now)
        elif await self._launcher.launch(attempt, outfit.order):
            unit.began(attempt, hook=True)
            self._say("Started", f"Started container {unit.name}", False)
            return []
        await self._take_over(unit, attempt)
        if unit.run is not None and not unit.run.running:
            self._say("Failed", f"Error: failed to start container: {unit.run.message}", True)
        self.wake()
        return []

    def _cannot(self, unit: Unit, reason: str, message: str) -> list[float]:
        unit.obstacle = Obstacle(reason, message)
        unit.retry_at = self._clock.now() + _OBSTACLE_SECONDS
        self._say("Failed", f"Error: {message}", True)
        return [unit.retry_at]

    def _dress_again(self, unit: Unit, attempt: Attempt) -> None:
        try:
            self._dress(unit, attempt)
        except (ConfigError, KeyError):
            name = container_name(self.pod, unit.name, attempt.number)
            unit.confined = Confined(argv=(), name=name)

    def _check_devices(self, unit: Unit) -> None:
        present = self._present()
        for device in of_container(unit.spec, self._devices()):
            if device.key not in present and _is_ours(device, present):
                raise ConfigError(
                    f"the device {device.pool}/{device.device} that was claimed is not on this node"
                )

    def _dress(self, unit: Unit, attempt: Attempt) -> Outfit:
        """How the container is run; the unit keeps what `exec` needs."""
        assert self._supplied is not None
        outfit = dress(
            self.pod, unit.spec, attempt, self._supplied, self._settings, self._present()
        )
        unit.confined, unit.env, unit.cgroups = outfit.confined, outfit.env, outfit.order.cgroups
        unit.address = self._supplied.place.address
        return outfit

    def _make_message_file(self, attempt: Attempt) -> None:
        attempt.folder.chmod(0o711)
        attempt.folder.parent.chmod(0o711)
        attempt.message_file.touch()
        attempt.message_file.chmod(0o666)

    # Telling.

    async def _report(self) -> None:
        self._note_lost_devices()
        if self._gone:
            return
        where = status.Where(
            host_ip=self._settings.host_ip,
            pod_ip=self._supplied.place.address if self._supplied else self._record.address,
            start_time=self._record.start_time,
            devices={
                name: device_status(of_container(unit.spec, self._devices()), self._present())
                for name, unit in self.units.items()
            },
            waiting=self._waiting,
        )
        told = status.compose(self.pod, self._life(), where, now=self._clock.now())
        if told == self._told:
            return
        metadata = self.pod["metadata"]
        try:
            answer = await self._client.patch(
                POD,
                metadata["name"],
                {"metadata": {"uid": metadata["uid"]}, "status": told},
                metadata["namespace"],
                subresource="status",
            )
        except NotFound:
            self._gone = True
            self.wake()
            return
        self._told = told
        if _number(answer) >= _number(self.pod):
            self.pod = answer

    def _devices(self) -> Sequence[Device]:
        return self._supplied.devices if self._supplied is not None else ()

    def _note_lost_devices(self) -> None:
        present = self._present()
        for device in self._devices():
            lost = device.key not in present and _is_ours(device, present)
            if lost and device.key not in self._lost_devices:
                self._lost_devices.add(device.key)
                self._say(
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
            self._say("Checkpointed", f"its checkpoint command: {said}", said != "exit 0")

        self._saving = asyncio.create_task(save(self.units[first]))

    def _say(self, reason: str, message: str, warning: bool) -> None:
        """An Event; nothing waits for it."""
        task = asyncio.create_task(
            self._recorder.record(
                self._client,
                {"apiVersion": "v1", "kind": "Pod", **self.pod},
                reason,
                message,
                type="Warning" if warning else "Normal",
            )
        )
        self._sayings.add(task)
        task.add_done_callback(self._sayings.discard)

    async def _release(self) -> None:
        """Its processes have ended; its logs stay until it is deleted."""
        if self._released:
            return
        self._released = True
        for name in self.units:
            self._settings.cgroups.remove(f"{self.uid}-{name}")
        if self._record.address:
            await self._settings.network.leave(self.uid)
        self._supplies.forget(self.uid)

    async def _remove(self) -> None:
        """Nothing of it runs, and the API knows: leave nothing behind."""
        metadata = self.pod["metadata"]
        if not self._gone:
            with suppress(NotFound):
                await self._client.delete(
                    POD,
                    metadata["name"],
                    metadata["namespace"],
                    grace_seconds=0,
                    uid=self.uid,
                )
        self.folder.remove()
        self._record = msgspec.structs.replace(
            self._record, stage=life.advance(self._record.stage, life.Event.DELETED)
        )


def _is_ours(device: Device, present: Mapping[tuple[str, str, str], str]) -> bool:
    """Whether our own inventory should have it; another driver's devices it cannot know."""
    return not present or any(device.driver == driver for driver, _, _ in present)


def _mount_reason(message: str) -> str:
    return "FailedMount" if message.startswith("MountVolume") else "FailedPrepareDynamicResources"


def _number(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)
