"""
The idle ladder: ready → asleep → stopped → released, and back to ready from any of them.

Rule 1: every step that a service can take is in the table below; an event that its rung has no row
        for changes nothing.
Rule 2: a wake is one operation, for any number of requests.
Rule 3: a service that was told to sleep is passed no request until it was told to wake and did,
        also if the call to sleep failed: it may be half asleep.

Pure: the caller passes the time and carries out the operation.
"""

from __future__ import annotations

import enum

import msgspec

from bidplane.api.endpoint import EndpointSpec
from bidplane.api.idling.ladder import OnSleepFailure, Rung, SleepKind


class Event(enum.StrEnum):
    """The events of a ladder."""

    IDLE = "Idle"  # nobody used it for the rung's window
    USED = "Used"  # a request, or a person, asks for it
    GIVEN_UP = "GivenUp"  # a person lets it go, or nobody waits for its start any more
    SLEPT = "Slept"
    SLEEP_FAILED = "SleepFailed"
    ROUSED = "Roused"
    ROUSE_FAILED = "RouseFailed"
    ANSWERED = "Answered"  # a pod of it answers
    PODS_LOST = "PodsLost"  # its pods went by themselves
    LEASE_LOST = "LeaseLost"  # somebody outbid the lease that it kept


class Operation(enum.StrEnum):
    """The acts that a step asks for; at most one."""

    SLEEP = "Sleep"  # tell the application to sleep
    ROUSE = "Rouse"  # tell it to wake
    STOP = "Stop"  # end the pods, keep the lease
    RELEASE = "Release"  # end the pods, give the lease back
    START = "Start"  # start pods
    RESTART = "Restart"  # end the pods, then start new ones


Step = tuple[Rung, Operation | None]

# From ready and asleep, IDLE leads to the next rung that the Endpoint has: `below`.
TRANSITIONS: dict[Rung, dict[Event, Step]] = {
    Rung.READY: {
        Event.GIVEN_UP: (Rung.RELEASED, Operation.RELEASE),
        # It starts anew by its Deployment.
        Event.PODS_LOST: (Rung.STARTING, None),
    },
    Rung.FALLING_ASLEEP: {
        Event.SLEPT: (Rung.ASLEEP, None),
        Event.GIVEN_UP: (Rung.RELEASED, Operation.RELEASE),
        Event.PODS_LOST: (Rung.RELEASED, Operation.RELEASE),
    },
    Rung.ASLEEP: {
        Event.USED: (Rung.ROUSING, Operation.ROUSE),
        Event.GIVEN_UP: (Rung.RELEASED, Operation.RELEASE),
        # New pods would bid for a service that nobody uses.
        Event.PODS_LOST: (Rung.RELEASED, Operation.RELEASE),
    },
    Rung.ROUSING: {
        Event.ROUSED: (Rung.READY, None),
        Event.ROUSE_FAILED: (Rung.STARTING, Operation.RESTART),
        Event.PODS_LOST: (Rung.STARTING, None),
        Event.GIVEN_UP: (Rung.RELEASED, Operation.RELEASE),
    },
    Rung.STOPPED: {
        Event.USED: (Rung.STARTING, Operation.START),
        Event.IDLE: (Rung.RELEASED, Operation.RELEASE),
        Event.GIVEN_UP: (Rung.RELEASED, Operation.RELEASE),
        Event.LEASE_LOST: (Rung.RELEASED, Operation.RELEASE),
    },
    Rung.RELEASED: {Event.USED: (Rung.STARTING, Operation.START)},
    Rung.STARTING: {
        Event.ANSWERED: (Rung.READY, None),
        Event.IDLE: (Rung.RELEASED, Operation.RELEASE),
        Event.GIVEN_UP: (Rung.RELEASED, Operation.RELEASE),
    },
}
_ENTER = {
    Rung.FALLING_ASLEEP: Operation.SLEEP,
    Rung.STOPPED: Operation.STOP,
    Rung.RELEASED: Operation.RELEASE,
}
# No request is passed on here, although there are pods.
SHUT = frozenset([Rung.FALLING_ASLEEP, Rung.ASLEEP, Rung.ROUSING])
# A request starts the way up from here; elsewhere the service is up, or on its way.
DOWN = frozenset([Rung.FALLING_ASLEEP, Rung.ASLEEP, Rung.STOPPED, Rung.RELEASED])


class Position(msgspec.Struct, frozen=True):
    """A service's place on its ladder."""

    rung: Rung
    since: float
    request_waits: bool = False  # a request came while it fell asleep
    origin: Rung = Rung.RELEASED  # the rung that it rises from
    risen_since: float = 0.0  # when the request came that it rises for
    problem: str = ""  # the last step that failed


def start(rung: Rung, now: float) -> Position:
    """Return the place of a service that is met in a state, by an activator that starts."""
    # A call to sleep or wake that the last activator made is not known to have ended.
    rung = Rung.ASLEEP if rung in SHUT else rung
    return Position(rung, now)


def below(spec: EndpointSpec, rung: Rung) -> Rung:
    """Return the next rung that an idle service takes."""
    ladder = spec.ladder
    if rung is Rung.READY and ladder.sleep is not None:
        return Rung.FALLING_ASLEEP
    if rung is not Rung.STOPPED and ladder.keep_lease_seconds:
        return Rung.STOPPED
    return Rung.RELEASED


def advance(
    spec: EndpointSpec, position: Position, event: Event, *, now: float
) -> tuple[Position, Operation | None]:
    """Return the place after an event, and the operation that makes it so."""
    rung = position.rung
    step = TRANSITIONS[rung].get(event)
    if rung in (Rung.READY, Rung.ASLEEP) and event is Event.IDLE:
        lower = below(spec, rung)
        step = lower, _ENTER[lower]
    elif rung is Rung.FALLING_ASLEEP:
        if event is Event.USED and not position.request_waits:
            return msgspec.structs.replace(position, request_waits=True, risen_since=now), None
        if event is Event.PODS_LOST and position.request_waits:
            step = Rung.STARTING, None
        elif event is Event.SLEEP_FAILED:
            step = _after_failed_sleep(spec, position)
        elif event is Event.SLEPT and position.request_waits:
            step = Rung.ROUSING, Operation.ROUSE
    if step is None:
        return position, None
    after, operation = step
    return _moved(position, after, event, now), operation


def _after_failed_sleep(spec: EndpointSpec, position: Position) -> Step:
    sleep = spec.ladder.sleep
    if position.request_waits or (sleep is not None and sleep.on_failure is OnSleepFailure.STAY):
        return Rung.ROUSING, Operation.ROUSE
    lower = below(spec, Rung.ASLEEP)
    return lower, _ENTER[lower]


def _moved(position: Position, rung: Rung, event: Event, now: float) -> Position:
    problem = position.problem
    if event in (Event.SLEEP_FAILED, Event.ROUSE_FAILED):
        problem = event.value
    elif event in (Event.SLEPT, Event.ANSWERED):
        problem = ""
    rises = rung in (Rung.ROUSING, Rung.STARTING)
    begins = rises and position.rung not in (Rung.ROUSING, Rung.STARTING)
    return Position(
        rung,
        now,
        origin=_origin(position.rung) if begins else position.origin,
        risen_since=position.risen_since if position.request_waits or not begins else now,
        problem=problem,
    )


def _origin(rung: Rung) -> Rung:
    return Rung.ASLEEP if rung in SHUT else rung


_HOLDS_ASLEEP = {
    (
        SleepKind.VLLM,
        1,
    ): "pods and leases; the weights are in main memory, 1 to 5 GiB in each GPU's",
    (SleepKind.VLLM, 2): "pods and leases; 1 to 5 GiB of each GPU's memory",
    (SleepKind.LLAMA_CPP, 1): "pods and leases; the model is unloaded",
    (SleepKind.COMFYUI, 1): "pods and leases; the models are unloaded",
    (SleepKind.COMMAND, 1): "pods and leases; the memory that its command left",
}


def holdings(spec: EndpointSpec, rung: Rung) -> str:
    """Return what a service holds on a rung."""
    if rung is Rung.RELEASED:
        return "nothing"
    if rung is Rung.STOPPED:
        return "leases, without pods"
    sleep = spec.ladder.sleep
    if rung is Rung.ASLEEP and sleep is not None:
        level = sleep.level if sleep.kind is SleepKind.VLLM else 1
        return _HOLDS_ASLEEP[sleep.kind, level]
    return "pods, leases and the GPUs' memory"
