"""
The life of a pod on its node: what may happen next.

Rule 1: every transition a pod can make on its node is in the table below.
Rule 2: this module reads no clock and does no I/O. The caller passes what it found and
the time, and carries out the returned operations. It may be asked again at any moment:
the answer follows from what is, not from what was done.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

BACKOFF_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 300.0


class Stage(enum.StrEnum):
    PREPARING = "Preparing"  # volumes, claims, an address
    INITIALISING = "Initialising"  # init containers, one after the other
    RUNNING = "Running"
    ENDING = "Ending"  # what still runs is being stopped
    ENDED = "Ended"  # nothing runs, and nothing will
    REMOVED = "Removed"  # nothing of it is left on the node


class Event(enum.StrEnum):
    PREPARED = "Prepared"
    INITIALISED = "Initialised"
    FINISHED = "Finished"  # its containers ended and are not started again
    STOP = "Stop"  # deleted, over its deadline, refused
    STOPPED = "Stopped"
    DELETED = "Deleted"


TRANSITIONS: dict[Stage, dict[Event, Stage]] = {
    Stage.PREPARING: {Event.PREPARED: Stage.INITIALISING, Event.STOP: Stage.ENDING},
    Stage.INITIALISING: {
        Event.INITIALISED: Stage.RUNNING,
        Event.FINISHED: Stage.ENDING,  # one failed for good
        Event.STOP: Stage.ENDING,
    },
    Stage.RUNNING: {Event.FINISHED: Stage.ENDING, Event.STOP: Stage.ENDING},
    Stage.ENDING: {Event.STOPPED: Stage.ENDED},
    Stage.ENDED: {Event.DELETED: Stage.REMOVED},
    Stage.REMOVED: {},
}


class Role(enum.StrEnum):
    INIT = "init"
    SIDECAR = "sidecar"  # an init container that is always restarted
    MAIN = "main"
    EPHEMERAL = "ephemeral"  # joined later, to look around: started once, and counts for nothing


_INITS = (Role.INIT, Role.SIDECAR)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One time a container was started."""

    attempt: int
    ordered: float  # when it was decided
    backoff: float = 0.0  # how long to wait after it, should it end
    started: float | None = None
    finished: float | None = None
    exit_code: int = 0
    reason: str = ""
    message: str = ""

    @property
    def running(self) -> bool:
        return self.finished is None


class Obstacle(msgspec.Struct, frozen=True):
    """Why a container cannot be started now; it is tried again."""

    reason: str
    message: str


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of one container."""

    name: str
    role: Role
    run: Run | None = None
    previous: Run | None = None
    started: bool = False  # its startup probe and its postStart hook are through
    ready: bool = False
    stopping: bool = False
    sick: str = ""  # why it must be stopped although the pod goes on
    obstacle: Obstacle | None = None

    @property
    def running(self) -> bool:
        return self.run is not None and self.run.running


class Halt(msgspec.Struct, frozen=True, kw_only=True):
    """The pod is to end. `reason` is empty when that was its owner's wish."""

    reason: str = ""
    message: str = ""
    until: float  # its grace is over then


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    stage: Stage
    containers: Sequence[Container]  # init containers first, ephemeral ones last, as in the spec
    restart_policy: str = "Always"
    grace_seconds: float = 30.0
    prepared: bool = False
    halt: Halt | None = None
    deleted: bool = False  # the API wants it gone
    reported: bool = False  # the API knows how it ended


class Start(msgspec.Struct, frozen=True, tag=True):
    container: str
    attempt: int
    backoff: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    container: str
    until: float  # then SIGKILL
    message: str


Operation = Start | Stop


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    stage: Stage
    operations: Sequence[Operation] = ()
    look_again: float | None = None  # a time


class LifeError(Exception):
    """A pod was asked to make a transition that is not in the table."""


def advance(stage: Stage, event: Event) -> Stage:
    try:
        return TRANSITIONS[stage][event]
    except KeyError:
        raise LifeError(f"{event} cannot happen to a pod that is {stage}") from None


def decide(pod: Pod, *, now: float) -> Decision:
    """Where the pod is after everything that is already true, and what to do there."""
    stage = pod.stage
    while (event := _event(pod, stage)) is not None:
        stage = advance(stage, event)
    match stage:
        case Stage.INITIALISING:
            steps = list(_initialise(pod, now))
        case Stage.RUNNING:
            steps = list(_run(pod, now))
        case Stage.ENDING:
            steps = list(_end(pod, now))
        case _:
            steps = []
    operations = [step for step in steps if not isinstance(step, float)]
    times = [step for step in steps if isinstance(step, float)]
    return Decision(stage=stage, operations=operations, look_again=min(times, default=None))


def _event(pod: Pod, stage: Stage) -> Event | None:
    """What is true of the pod and moves it on."""
    going = stage in (Stage.PREPARING, Stage.INITIALISING, Stage.RUNNING)
    if going and pod.halt is not None:
        return Event.STOP
    if stage is Stage.PREPARING and pod.prepared:
        return Event.PREPARED
    if stage is Stage.INITIALISING:
        inits = [c for c in pod.containers if c.role in _INITS]
        if any(_failed_for_good(pod, container) for container in inits):
            return Event.FINISHED
        if all(_initialised(container) for container in inits):
            return Event.INITIALISED
    if stage is Stage.RUNNING:
        mains = [c for c in pod.containers if c.role is Role.MAIN]
        if all(_done(pod, container) for container in mains):
            return Event.FINISHED
    if stage is Stage.ENDING and not any(container.running for container in pod.containers):
        return Event.STOPPED
    if stage is Stage.ENDED and pod.deleted and pod.reported:
        return Event.DELETED
    return None


def _initialised(container: Container) -> bool:
    if container.role is Role.SIDECAR:
        return container.started
    run = container.run
    return run is not None and not run.running and run.exit_code == 0


def _failed_for_good(pod: Pod, container: Container) -> bool:
    run = container.run
    ended = run is not None and not run.running and run.exit_code != 0
    return ended and container.role is Role.INIT and pod.restart_policy == "Never"


def _done(pod: Pod, container: Container) -> bool:
    run = container.run
    return run is not None and not run.running and not again(pod, container)


def again(pod: Pod, container: Container) -> bool:
    """Whether a container that ended is started again."""
    assert container.run is not None
    if container.role in (Role.SIDECAR, Role.EPHEMERAL):
        return container.role is Role.SIDECAR
    failed = container.run.exit_code != 0
    if container.role is Role.INIT:
        return failed and pod.restart_policy != "Never"
    return pod.restart_policy == "Always" or (pod.restart_policy == "OnFailure" and failed)


def _initialise(pod: Pod, now: float) -> Iterator[Operation | float]:
    for container in pod.containers:
        if container.role is Role.EPHEMERAL:
            yield from _keep(pod, container, now)  # whoever's turn it is
    for container in pod.containers:
        if container.role not in _INITS:
            return
        yield from _keep(pod, container, now)
        if not _initialised(container):
            return  # the next one's turn comes after it


def _run(pod: Pod, now: float) -> Iterator[Operation | float]:
    for container in pod.containers:
        if container.role is not Role.INIT:
            yield from _keep(pod, container, now)


def _keep(pod: Pod, container: Container, now: float) -> Iterator[Operation | float]:
    """Start it, start it again, or stop what is sick."""
    run = container.run
    if run is None:
        yield Start(container.name, 0, 0.0)
    elif run.running:
        if container.sick and not container.stopping:
            yield Stop(container.name, now + pod.grace_seconds, container.sick)
    elif again(pod, container):
        due = restart_at(run)
        if now < due:
            yield due
        else:
            yield Start(container.name, run.attempt + 1, next_backoff(run, now))


def restart_at(run: Run) -> float:
    assert run.finished is not None
    return run.finished + run.backoff


def next_backoff(run: Run, now: float) -> float:
    """
    How long to wait after the run that follows `run`: 0, 10, 20, 40 … 300 seconds.

    As the kubelet counts: one that lived long enough is forgiven.
    """
    if not run.backoff or now - run.ordered > 2 * LONGEST_BACKOFF_SECONDS:
        return BACKOFF_SECONDS
    return min(2 * run.backoff, LONGEST_BACKOFF_SECONDS)


def _end(pod: Pod, now: float) -> Iterator[Operation | float]:
    """First what does the work, then its sidecars, the last one started first."""
    until = pod.halt.until if pod.halt is not None else now + pod.grace_seconds
    others = [c for c in pod.containers if c.role is not Role.SIDECAR and c.running]
    for container in others:
        if not container.stopping:
            yield Stop(container.name, until, f"Stopping container {container.name}")
    if others:
        return
    for container in reversed(pod.containers):
        if container.role is Role.SIDECAR and container.running:
            if not container.stopping:
                yield Stop(container.name, until, f"Stopping container {container.name}")
            return
