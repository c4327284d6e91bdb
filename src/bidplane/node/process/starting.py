"""
Starts a pod's containers, and finds them again when an agent before us started them.

A container is started at most once for each attempt: what was decided is written down
first, and of two shims in one attempt's folder one runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec

from bidplane.core.pods.environment import ConfigError
from bidplane.core.pods.life import Obstacle
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.process.confine import Confined
from bidplane.node.process.dressing import (
    NotMapped,
    Outfit,
    container_name,
    dress,
    missing_command,
)
from bidplane.node.process.provisions import Provisions
from bidplane.node.process.records import Attempt, PodFolder
from bidplane.node.process.runs import Launcher
from bidplane.node.process.settings import Settings
from bidplane.node.process.supplies import Present, is_lost, of_container
from bidplane.node.process.unit import Say, Unit

_OBSTACLE_SECONDS = 10.0
_CANNOT_START = 128
_TAKE_OVER_SECONDS = 0.01


class Starter:
    """For one pod; `pod` gives the API's newest of it."""

    def __init__(
        self,
        pod: Callable[[], Object],
        folder: PodFolder,
        provisions: Provisions,
        *,
        settings: Settings,
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
        """Start it; returns when to try again if it could not even be tried."""
        now = self._clock.now()
        if unit.obstacle is not None and now < unit.retry_at:
            return unit.retry_at
        attempt = self._folder.attempt(unit.name, number)
        try:
            self._check_devices(unit)
            outfit = self._dress(unit, attempt)
            if unit.target is not None:
                outfit = await _beside(unit.target, outfit)
        except NotMapped as error:
            return self._cannot(unit, "ErrImageNeverPull", str(error))
        except (ConfigError, KeyError) as error:
            return self._cannot(unit, "CreateContainerConfigError", str(error))
        if unit.run is not None and not unit.run.running:
            unit.previous = unit.run
        attempt.create(now, backoff)
        self._folder.forget_old(unit.name)
        unit.obstacle = None
        missing = missing_command(outfit, self._settings)
        if missing:
            attempt.mark_failed(_CANNOT_START, "StartError", missing, now)
        elif await self._launcher.launch(attempt, outfit.order):
            unit.began(attempt, hook=True)
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
        for device in of_container(unit.spec, self._provisions.devices):
            if is_lost(device, present):
                raise ConfigError(
                    f"the device {device.pool}/{device.device} that was claimed is not on this node"
                )

    def _dress(self, unit: Unit, attempt: Attempt) -> Outfit:
        """How the container is run; the unit keeps what `exec` needs."""
        supplied = self._provisions.supplied
        assert supplied is not None
        outfit = dress(self._pod(), unit.spec, attempt, supplied, self._settings, self._present())
        unit.confined, unit.env, unit.cgroups = outfit.confined, outfit.env, outfit.order.cgroups
        unit.address = supplied.place.address
        return outfit

    # After a restart of the agent.

    async def find_again(self, units: Iterable[Unit]) -> None:
        """What runs, what ended, what was never started."""
        status = self._pod().get("status") or {}
        known = {
            one["name"]: one
            for field in ("initContainerStatuses", "containerStatuses")
            for one in status.get(field) or ()
        }
        for unit in units:
            attempts = self._folder.attempts(unit.name)
            if attempts and unit.attempt is None:
                if len(attempts) > 1:
                    unit.previous = attempts[-2].run()
                await self._find(unit, attempts[-1], known)

    async def _find(self, unit: Unit, last: Attempt, known: Mapping[str, Object]) -> None:
        run = last.run()
        if not run.running:
            unit.found_over(last)
        elif not last.begun():
            # It was decided and not done.
            await self.start(unit, last.number, run.backoff)
        else:
            self._dress_again(unit, last)
            await self._take_over(unit, last, known.get(unit.name))

    def _dress_again(self, unit: Unit, attempt: Attempt) -> None:
        try:
            self._dress(unit, attempt)
        except (ConfigError, KeyError):
            name = container_name(self._pod(), unit.name, attempt.number)
            unit.confined = Confined(argv=(), name=name)

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


async def _beside(target: Unit, outfit: Outfit) -> Outfit:
    """The same command, but among the processes and files of a container that runs."""
    if not target.facts().running:
        raise ConfigError(f"its target, the container {target.name}, does not run")
    await target.settled()
    argv = target.command(outfit.confined.argv).argv
    order = msgspec.structs.replace(outfit.order, argv=argv, tells_inside=False, adopts=True)
    return msgspec.structs.replace(outfit, order=order)
