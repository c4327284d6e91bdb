"""
One Endpoint's idle ladder as the activator climbs it: windows that end, calls to sleep
and to wake.

Decisions are `core.idling.ladder`'s. Nothing is polled while a window lasts: an application is
asked once its window has ended, and again after a pause while it is busy or unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import msgspec
import structlog

from bidplane.activator.applications import Applications, SleepProblem, pods_of
from bidplane.api.idling.ladder import LadderStatus, LadderWindows, Rung, WakeTimes
from bidplane.api.reading import Endpoint
from bidplane.api.times import rfc3339
from bidplane.core.idling import ladder
from bidplane.core.idling.ladder import Event, Operation, Position
from bidplane.core.idling.windows import Arrivals, WindowInputs, windows_of

_WAKE_FIELDS = {Rung.ASLEEP: "asleep", Rung.STOPPED: "stopped", Rung.RELEASED: "released"}

log = structlog.get_logger(__name__)


class LadderSite(Protocol):
    """The Endpoint that stands on the ladder."""

    endpoint: Endpoint

    def shut(self) -> None:
        """Pass no requests on."""

    def reopen(self) -> None:
        """Pass requests on again, once its pods answer."""

    def demand_pods(self, *, awake: bool, keep_lease: bool, reason: str) -> None: ...

    @property
    def busy_reason(self) -> str:
        """The reason that its application gave for not being idle."""
        ...

    def report(self) -> None:
        """Write the ladder's status."""


class LadderClimber:
    """Takes the steps of one Endpoint."""

    def __init__(
        self,
        site: LadderSite,
        applications: Applications,
        *,
        rung: Rung,
        now: Callable[[], float],
    ) -> None:
        self._site, self._applications, self._now = site, applications, now
        self.position: Position = ladder.start(rung, now())
        previous = site.endpoint.status.ladder if site.endpoint.status is not None else None
        self._wake = previous.wake if previous is not None else WakeTimes()
        self.arrivals = Arrivals()
        self._task: asyncio.Task[None] | None = None  # a call to sleep or to wake
        self._message = ""
        self._restarts = False  # it stops, to be started again
        self._had_pods = False

    def __repr__(self) -> str:
        return f"<LadderClimber {self.position.rung}>"

    @property
    def rung(self) -> Rung:
        return self.position.rung

    @property
    def is_shut(self) -> bool:
        """True if its pods are to get no request."""
        return self.rung in ladder.SHUT

    @property
    def is_down(self) -> bool:
        """True if a request is needed for its way up to begin."""
        falling = self.rung is Rung.FALLING_ASLEEP and self.position.request_waits
        return self.rung in ladder.DOWN and not falling

    def windows(self) -> LadderWindows:
        """Return the windows of the rungs as they are now."""
        endpoint = self._site.endpoint
        holding = endpoint.status.holding if endpoint.status is not None else None
        inputs = WindowInputs(
            wake=self._wake,
            arrivals=self.arrivals,
            paid_per_hour=holding.paid_per_hour if holding is not None else "",
        )
        return windows_of(endpoint.spec, inputs)

    def status(self) -> LadderStatus:
        endpoint, position = self._site.endpoint, self.position
        return LadderStatus(
            rung=position.rung,
            since=rfc3339(position.since),
            holds=ladder.holdings(endpoint.spec, position.rung),
            windows=self.windows(),
            wake=self._wake,
            idle=self._site.busy_reason if position.rung is Rung.READY else "",
            problem=position.problem,
            message=self._message if position.problem else "",
        )

    # Events.

    def handle(self, event: Event, reason: str = "") -> None:
        """Take the step that an event asks for, and act."""
        now, before = self._now(), self.position
        self.position, operation = ladder.advance(self._site.endpoint.spec, before, event, now=now)
        if self.position == before:
            return
        if self.position.rung is not before.rung:
            self._stop_tasks()
            if self.rung is Rung.READY:
                self._note_wake(now)
        self._act(operation, reason)
        if self.rung is Rung.READY and before.rung is Rung.ROUSING:
            self._site.reopen()
        self._site.report()

    def _act(self, operation: Operation | None, reason: str) -> None:
        site = self._site
        match operation:
            case Operation.SLEEP:
                site.shut()
                self._task = self._start(self._sleep())
            case Operation.ROUSE:
                self._task = self._start(self._rouse())
            case Operation.STOP:
                site.demand_pods(awake=False, keep_lease=True, reason=reason or "Idle")
            case Operation.RELEASE:
                site.demand_pods(awake=False, keep_lease=False, reason=reason or "Idle")
            case Operation.START:
                site.demand_pods(awake=True, keep_lease=False, reason=reason or "Request")
            case Operation.RESTART:
                self._restarts = True
                keeps = bool(site.endpoint.spec.ladder.keep_lease_seconds)
                site.demand_pods(awake=False, keep_lease=keeps, reason="Restart")
            case None:
                pass

    def _note_wake(self, now: float) -> None:
        """Remember how long the wake took that has just ended."""
        field = _WAKE_FIELDS.get(self.position.origin)
        if field is not None and self.position.risen_since:
            milliseconds = round(1000 * (now - self.position.risen_since))
            self._wake = msgspec.structs.replace(self._wake, **{field: milliseconds})

    @property
    def rise(self) -> tuple[float, float]:
        """Since when it rises, and how many seconds that took last time; 0 is not known."""
        field = _WAKE_FIELDS.get(self.position.origin)
        milliseconds = int(getattr(self._wake, field)) if field is not None else 0
        return self.position.risen_since, milliseconds / 1000

    def follow(self, *, is_answered: bool) -> None:
        """
        Take a new version of the Endpoint: its pods or its lease may have gone. `is_answered`: its
        status is of the present demand.
        """
        status = self._site.endpoint.status
        if status is None or not is_answered:
            return
        if self._restarts:
            self._restarts = False
            self._site.demand_pods(awake=True, keep_lease=False, reason="Restart")
            return
        has_pods = bool(status.backends)
        if self._had_pods and not has_pods and (self.is_shut or self.rung is Rung.READY):
            self.handle(Event.PODS_LOST, "PodsLost")
        self._had_pods = has_pods
        if self.rung is Rung.STOPPED and not status.holding.keeps_lease:
            self.handle(Event.LEASE_LOST, "LeaseLost")

    def tick(self) -> None:
        """Do what is due on the rungs below ready."""
        windows, since = self.windows(), self._now() - self.position.since
        is_over = (self.rung is Rung.ASLEEP and since >= windows.asleep) or (
            self.rung is Rung.STOPPED and since >= windows.stopped
        )
        if is_over:
            self.handle(Event.IDLE)

    # Calls.

    async def _sleep(self) -> None:
        sleep = self._site.endpoint.spec.ladder.sleep
        try:
            if sleep is None:
                raise SleepProblem("its ladder has no sleep any more")
            await self._applications.sleep(sleep, pods_of(self._site.endpoint))
        except SleepProblem as problem:
            self._failed(Event.SLEEP_FAILED, problem)
        else:
            self._task = None
            self.handle(Event.SLEPT)

    async def _rouse(self) -> None:
        sleep = self._site.endpoint.spec.ladder.sleep
        try:
            if sleep is None:
                raise SleepProblem("its ladder has no sleep any more")
            await self._applications.rouse(sleep, pods_of(self._site.endpoint))
        except SleepProblem as problem:
            self._failed(Event.ROUSE_FAILED, problem)
        else:
            self._task = None
            self.handle(Event.ROUSED)

    def _failed(self, event: Event, problem: SleepProblem) -> None:
        self._task, self._message = None, str(problem)
        name = self._site.endpoint.name
        log.warning(
            "a step of the ladder failed", endpoint=name, step=event.value, why=str(problem)
        )
        self.handle(event, event.value)

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            with suppress(asyncio.CancelledError):
                await work

        return asyncio.get_running_loop().create_task(run())

    def _stop_tasks(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None

    def close(self) -> None:
        """Make no calls any more."""
        self._stop_tasks()
