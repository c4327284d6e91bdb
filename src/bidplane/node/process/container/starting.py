"""
Starts a pod's containers, and adopts those that run after a restart of the agent.

A container is started at most once per attempt: the decision is recorded first, and of two
shims in one attempt's folder only one runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec

from bidplane.core.pods.environment import ConfigError
from bidplane.core.pods.life import Obstacle
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.process.container.container import Say, Unit
from bidplane.node.process.container.launch import (
    LaunchPlan,
    NotMapped,
    container_name,
    missing_command,
    plan_launch,
)
from bidplane.node.process.container.shims import Launcher
from bidplane.node.process.provisions import Provisions
from bidplane.node.process.records import Attempt, PodFolder
from bidplane.node.process.sandbox.confinement import Confined
from bidplane.node.process.settings import ProcessSettings
from bidplane.node.process.supplies import Present, container_devices, is_lost

_OBSTACLE_SECONDS = 10.0
_CANNOT_START = 128
_TAKE_OVER_SECONDS = 0.01


class Starter:
    """Starts one pod's containers; `pod` returns its newest version from the API."""

    def __init__(
        self,
        pod: Callable[[], Object],
        folder: PodFolder,
        provisions: Provisions,
        *,
        settings: ProcessSettings,
        present: Callable[[], Present],
        launcher: Launcher,
        clock: Clock,
        say: Say,
    ) -> None:
        self._pod = pod
        self._folder = folder
        self._provisions = provisions
        self._settings = settings
        self._present = present
        self._launcher = launcher
        self._clock = clock
        self._say = say

    async def start(self, unit: Unit, number: int, backoff: float) -> float | None:
        """Start a container; return the time of the next try if it cannot be tried now."""
        now = self._clock.now()
        if unit.obstacle is not None and now < unit.retry_at:
            return unit.retry_at
        attempt = self._folder.attempt(unit.name, number)
        try:
            self._check_devices(unit)
            plan = self._plan(unit, attempt)
            if unit.target is not None:
                plan = await _joined_plan(unit.target, plan)
        except NotMapped as error:
            return self._cannot(unit, "ErrImageNeverPull", str(error))
        except (ConfigError, KeyError) as error:
            return self._cannot(unit, "CreateContainerConfigError", str(error))
        if unit.run is not None and not unit.run.running:
            unit.previous = unit.run
        attempt.create(now, backoff)
        self._folder.remove_old_attempts(unit.name)
        unit.obstacle = None
        missing = missing_command(plan, self._settings)
        if missing:
            attempt.mark_failed(_CANNOT_START, "StartError", missing, now)
        elif await self._launcher.launch(attempt, plan.order):
            unit.follow(attempt, hook=True)
            self._say("Started", f"Started container {unit.name}", False)
            return None
        await self._take_over(unit, attempt)
        if unit.run is not None and not unit.run.running:
            self._say("Failed", f"Error: failed to start container: {unit.run.message}", True)
        return None

    def _cannot(self, unit: Unit, reason: str, message: str) -> float:
        unit.obstacle = Obstacle(reason, message)
        unit.retry_at = self._clock.now() + _OBSTACLE_SECONDS
        self._say("Failed", f"Error: {message}", True)
        return unit.retry_at

    def _check_devices(self, unit: Unit) -> None:
        present = self._present()
        for device in container_devices(unit.spec, self._provisions.devices):
            if is_lost(device, present):
                raise ConfigError(
                    f"the device {device.pool}/{device.device} that was claimed is not on this node"
                )

    def _plan(self, unit: Unit, attempt: Attempt) -> LaunchPlan:
        """Return the launch order; store in the unit what `exec` needs."""
        supplied = self._provisions.supplied
        assert supplied is not None
        plan = plan_launch(
            self._pod(), unit.spec, attempt, supplied, self._settings, self._present()
        )
        unit.confined, unit.env, unit.cgroups = plan.confined, plan.env, plan.order.cgroups
        unit.address = supplied.place.address
        return plan

    # After a restart of the agent.

    async def restore_units(self, units: Iterable[Unit]) -> None:
        """Restore each unit from its folder: running, ended, or never started."""
        status = self._pod().get("status") or {}
        statuses = {
            container_status["name"]: container_status
            for field in ("initContainerStatuses", "containerStatuses")
            for container_status in status.get(field) or ()
        }
        for unit in units:
            attempts = self._folder.attempts(unit.name)
            if attempts and unit.attempt is None:
                if len(attempts) > 1:
                    unit.previous = attempts[-2].run()
                await self._find(unit, attempts[-1], statuses)

    async def _find(self, unit: Unit, last: Attempt, statuses: Mapping[str, Object]) -> None:
        run = last.run()
        if not run.running:
            unit.mark_finished(last)
        elif not last.is_begun():
            # The start was recorded but not carried out.
            await self.start(unit, last.number, run.backoff)
        else:
            self._restore_confinement(unit, last)
            await self._take_over(unit, last, statuses.get(unit.name))

    def _restore_confinement(self, unit: Unit, attempt: Attempt) -> None:
        try:
            self._plan(unit, attempt)
        except (ConfigError, KeyError):
            name = container_name(self._pod(), unit.name, attempt.number)
            unit.confined = Confined(argv=(), name=name)

    async def _take_over(
        self, unit: Unit, attempt: Attempt, reported: Object | None = None
    ) -> None:
        """Follow a container that an earlier agent started, or was starting."""
        while attempt.state() is None and attempt.run().running and attempt.is_supervised():
            await asyncio.sleep(_TAKE_OVER_SECONDS)
        if attempt.state() is not None:
            unit.follow(attempt, hook=False, reported=reported)
            return
        if attempt.run().running:
            attempt.mark_lost(self._clock.now())
        unit.mark_finished(attempt)


async def _joined_plan(target: Unit, plan: LaunchPlan) -> LaunchPlan:
    """Return the launch order with its command joined to a running container."""
    if not target.facts().running:
        raise ConfigError(f"the target container {target.name} is not running")
    await target.wait_joinable()
    joined = target.command(plan.confined.argv)
    order = msgspec.structs.replace(
        plan.order,
        argv=joined.argv,
        env=joined.env,
        descriptors=joined.descriptors,
        tells_inside=False,
        adopts=True,
    )
    return msgspec.structs.replace(plan, order=order)
