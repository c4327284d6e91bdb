"""
The life cycle of a pod on its node.

Rule 1: every transition a pod can make on its node is in the table below. Rule 2: this module reads
no clock and does no I/O. The caller passes the pod's state and the time, and carries out the
returned operations. It may be called again at any moment: the decision follows from the state, not
from what was done.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

BACKOFF_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 300.0


class PodStage(enum.StrEnum):
    """The stages of a pod's life on its node."""

    PREPARING = "Preparing"  # volumes, claims and an address are made
    INITIALISING = "Initialising"  # init containers, one after the other
    RUNNING = "Running"
    ENDING = "Ending"  # the containers that still run are being stopped
    ENDED = "Ended"  # no container runs or will run
    REMOVED = "Removed"  # the node has nothing left of it


class PodEvent(enum.StrEnum):
    """An event that moves a pod to its next stage."""

    PREPARED = "Prepared"
    INITIALISED = "Initialised"
    FINISHED = "Finished"  # its containers ended and are not restarted
    STOP = "Stop"  # deleted, over its deadline, refused
    STOPPED = "Stopped"
    DELETED = "Deleted"


TRANSITIONS: dict[PodStage, dict[PodEvent, PodStage]] = {
    PodStage.PREPARING: {PodEvent.PREPARED: PodStage.INITIALISING, PodEvent.STOP: PodStage.ENDING},
    PodStage.INITIALISING: {
        PodEvent.INITIALISED: PodStage.RUNNING,
        PodEvent.FINISHED: PodStage.ENDING,  # one failed and is not restarted
        PodEvent.STOP: PodStage.ENDING,
    },
    PodStage.RUNNING: {PodEvent.FINISHED: PodStage.ENDING, PodEvent.STOP: PodStage.ENDING},
    PodStage.ENDING: {PodEvent.STOPPED: PodStage.ENDED},
    PodStage.ENDED: {PodEvent.DELETED: PodStage.REMOVED},
    PodStage.REMOVED: {},
}


class Role(enum.StrEnum):
    """The role of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"  # an init container that is always restarted
    MAIN = "main"
    EPHEMERAL = (
        "ephemeral"  # added later for debugging: started once, and not part of the pod's state
    )


_INITS = (Role.INIT, Role.SIDECAR)


class ContainerRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a container."""

    attempt: int
    ordered: float  # when its start was decided
    backoff: float = 0.0  # how long to wait before a restart after it
    started: float | None = None
    finished: float | None = None
    exit_code: int = 0
    reason: str = ""
    message: str = ""

    @property
    def running(self) -> bool:
        return self.finished is None


class Obstacle(msgspec.Struct, frozen=True):
    """The reason why a container cannot be started now; it is tried again."""

    reason: str
    message: str


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one container."""

    name: str
    role: Role
    run: ContainerRun | None = None
    previous: ContainerRun | None = None
    started: bool = False  # its startup probe and its postStart hook succeeded
    ready: bool = False
    stopping: bool = False
    sick: str = ""  # why it must be stopped while the pod goes on
    obstacle: Obstacle | None = None

    @property
    def running(self) -> bool:
        return self.run is not None and self.run.running


class Halt(msgspec.Struct, frozen=True, kw_only=True):
    """The order to end the pod. `reason` is empty when its owner deleted it."""

    reason: str = ""
    message: str = ""
    until: float  # the end of its grace period


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pod on its node."""

    stage: PodStage
    containers: Sequence[
        ContainerState
    ]  # init containers first, ephemeral ones last, as in the spec
    restart_policy: str = "Always"
    grace_seconds: float = 30.0
    prepared: bool = False
    halt: Halt | None = None
    deleted: bool = False  # it is deleted in the API
    reported: bool = False  # its final status is in the API


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start a container."""

    container: str
    attempt: int
    backoff: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Stop a container."""

    container: str
    until: float  # then SIGKILL
    message: str


Operation = Start | Stop


class PodDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The pod's stage, what to do now, and when to decide again."""

    stage: PodStage
    operations: Sequence[Operation] = ()
    look_again: float | None = None  # the time of the next decision


class LifeError(Exception):
    """A pod was asked to make a transition that is not in the table."""


def advance(stage: PodStage, event: PodEvent) -> PodStage:
    """Return the stage after an event; raises `LifeError` when the table has no such row."""
    try:
        return TRANSITIONS[stage][event]
    except KeyError:
        raise LifeError(f"{event} cannot happen to a pod that is {stage}") from None


def decide(pod: PodState, *, now: float) -> PodDecision:
    """Return the stage that follows from the pod's state, and the operations for it."""
    stage = pod.stage
    while (event := _due_event(pod, stage)) is not None:
        stage = advance(stage, event)
    match stage:
        case PodStage.INITIALISING:
            steps = list(_initialise(pod, now))
        case PodStage.RUNNING:
            steps = list(_run(pod, now))
        case PodStage.ENDING:
            steps = list(_end(pod, now))
        case _:
            steps = []
    operations = [step for step in steps if not isinstance(step, float)]
    times = [step for step in steps if isinstance(step, float)]
    return PodDecision(stage=stage, operations=operations, look_again=min(times, default=None))


def _due_event(pod: PodState, stage: PodStage) -> PodEvent | None:
    """Return the event that is due in the pod's state; None if there is none."""
    is_live = stage in (PodStage.PREPARING, PodStage.INITIALISING, PodStage.RUNNING)
    if is_live and pod.halt is not None:
        return PodEvent.STOP
    if stage is PodStage.PREPARING and pod.prepared:
        return PodEvent.PREPARED
    if stage is PodStage.INITIALISING:
        inits = [c for c in pod.containers if c.role in _INITS]
        if any(_failed_for_good(pod, container) for container in inits):
            return PodEvent.FINISHED
        if all(_is_initialised(container) for container in inits):
            return PodEvent.INITIALISED
    if stage is PodStage.RUNNING:
        mains = [c for c in pod.containers if c.role is Role.MAIN]
        if all(_has_finished(pod, container) for container in mains):
            return PodEvent.FINISHED
    if stage is PodStage.ENDING and not any(container.running for container in pod.containers):
        return PodEvent.STOPPED
    if stage is PodStage.ENDED and pod.deleted and pod.reported:
        return PodEvent.DELETED
    return None


def _is_initialised(container: ContainerState) -> bool:
    """Return whether an init container has finished, or a sidecar has started."""
    if container.role is Role.SIDECAR:
        return container.started
    run = container.run
    return run is not None and not run.running and run.exit_code == 0


def _failed_for_good(pod: PodState, container: ContainerState) -> bool:
    """Return whether an init container failed and is not restarted."""
    run = container.run
    ended = run is not None and not run.running and run.exit_code != 0
    return ended and container.role is Role.INIT and pod.restart_policy == "Never"


def _has_finished(pod: PodState, container: ContainerState) -> bool:
    """Return whether a container ended and is not restarted."""
    run = container.run
    return run is not None and not run.running and not is_restarted(pod, container)


def is_restarted(pod: PodState, container: ContainerState) -> bool:
    """Return whether a container that ended is restarted."""
    assert container.run is not None
    if container.role in (Role.SIDECAR, Role.EPHEMERAL):
        return container.role is Role.SIDECAR
    failed = container.run.exit_code != 0
    if container.role is Role.INIT:
        return failed and pod.restart_policy != "Never"
    return pod.restart_policy == "Always" or (pod.restart_policy == "OnFailure" and failed)


def _initialise(pod: PodState, now: float) -> Iterator[Operation | float]:
    """
    Yield operations, and times to decide again, while init containers run one after the other.
    """
    for container in pod.containers:
        if container.role is Role.EPHEMERAL:
            yield from _keep_running(pod, container, now)  # these do not wait for init containers
    for container in pod.containers:
        if container.role not in _INITS:
            return
        yield from _keep_running(pod, container, now)
        if not _is_initialised(container):
            return  # the next one starts when this one is done


def _run(pod: PodState, now: float) -> Iterator[Operation | float]:
    """Yield operations, and times to decide again, for the running pod."""
    for container in pod.containers:
        if container.role is not Role.INIT:
            yield from _keep_running(pod, container, now)


def _keep_running(
    pod: PodState, container: ContainerState, now: float
) -> Iterator[Operation | float]:
    """
    Yield the start or restart of a container, the stop of a sick one, or the time of a restart.
    """
    run = container.run
    if run is None:
        yield Start(container.name, 0, 0.0)
    elif run.running:
        if container.sick and not container.stopping:
            yield Stop(container.name, now + pod.grace_seconds, container.sick)
    elif is_restarted(pod, container):
        due = restart_at(run)
        if now < due:
            yield due
        else:
            yield Start(container.name, run.attempt + 1, next_backoff(run, now))


def restart_at(run: ContainerRun) -> float:
    """Return when a run that ended may be followed by the next."""
    assert run.finished is not None
    return run.finished + run.backoff


def next_backoff(run: ContainerRun, now: float) -> float:
    """
    Return how long to wait after the run that follows `run`: 0, 10, 20, 40 … 300 seconds.

    As the kubelet counts: a run that lasted long enough resets the back-off.
    """
    if not run.backoff or now - run.ordered > 2 * LONGEST_BACKOFF_SECONDS:
        return BACKOFF_SECONDS
    return min(2 * run.backoff, LONGEST_BACKOFF_SECONDS)


def _end(pod: PodState, now: float) -> Iterator[Operation | float]:
    """
    Yield the stops of an ending pod: first all but sidecars, then sidecars, the last started first.
    """
    until = pod.halt.until if pod.halt is not None else now + pod.grace_seconds
    working = [c for c in pod.containers if c.role is not Role.SIDECAR and c.running]
    for container in working:
        if not container.stopping:
            yield Stop(container.name, until, f"Stopping container {container.name}")
    if working:
        return
    for container in reversed(pod.containers):
        if container.role is Role.SIDECAR and container.running:
            if not container.stopping:
                yield Stop(container.name, until, f"Stopping container {container.name}")
            return
