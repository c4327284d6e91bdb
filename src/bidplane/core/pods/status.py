"""The status of a pod in the API: phase, conditions, containers, in the kubelet's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.kinds import Object
from bidplane.api.times import rfc3339
from bidplane.core.pods.life import (
    ContainerRun,
    ContainerState,
    Obstacle,
    PodStage,
    PodState,
    Role,
    is_restarted,
    restart_at,
)

OWN_CONDITIONS = (
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
)


_SERVING = (Role.MAIN, Role.SIDECAR)


class StatusFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts for a pod's status that do not follow from its life cycle."""

    host_ip: str
    pod_ip: str = ""
    start_time: float | None = None
    devices: Mapping[str, Sequence[Mapping[str, Any]]] = {}  # of each container
    waiting: Obstacle | None = None  # why it cannot be prepared


def compose(pod: Object, life: PodState, where: StatusFacts, *, now: float) -> dict[str, Any]:
    """Return the whole status of a pod."""
    phase = phase_of(life)
    specs = {
        container["name"]: container
        for field in ("initContainers", "containers", "ephemeralContainers")
        for container in pod["spec"].get(field) or ()
    }
    statuses = {
        c.name: _container_status(specs[c.name], c, life, where, now=now) for c in life.containers
    }

    def statuses_of(*roles: Role) -> list[dict[str, Any]]:
        return [statuses[c.name] for c in life.containers if c.role in roles]

    status: dict[str, Any] = {
        "phase": phase,
        "conditions": _conditions(pod, life, where, phase, now=now),
        "containerStatuses": statuses_of(Role.MAIN),
        "hostIP": where.host_ip,
        "hostIPs": [{"ip": where.host_ip}],
    }
    if inits := statuses_of(Role.INIT, Role.SIDECAR):
        status["initContainerStatuses"] = inits
    if ephemeral := statuses_of(Role.EPHEMERAL):
        status["ephemeralContainerStatuses"] = ephemeral
    if where.pod_ip:
        status["podIP"] = where.pod_ip
        status["podIPs"] = [{"ip": where.pod_ip}]
    if where.start_time is not None:
        status["startTime"] = rfc3339(where.start_time)
    if life.halt is not None and life.halt.reason and phase == "Failed":
        status["reason"], status["message"] = life.halt.reason, life.halt.message
    generation = pod["metadata"].get("generation")
    if generation:
        status["observedGeneration"] = generation
    return status


def phase_of(life: PodState) -> str:
    """Return the phase of a pod."""
    mains = [c for c in life.containers if c.role is Role.MAIN]
    if life.stage is PodStage.PREPARING:
        return "Pending"
    if life.stage in (PodStage.ENDED, PodStage.REMOVED):
        if life.halt is not None and life.halt.reason:
            return "Failed"
        succeeded = all(c.run is not None and c.run.exit_code == 0 for c in mains)
        return "Succeeded" if succeeded else "Failed"
    if any(c.run is not None and c.run.started is not None for c in mains):
        return "Running"
    return "Pending"


def is_ready(life: PodState) -> bool:
    """Return whether the pod runs and all its main containers and sidecars are ready."""
    serving = [c for c in life.containers if c.role in _SERVING]
    return life.stage is PodStage.RUNNING and all(c.running and c.ready for c in serving)


def _conditions(
    pod: Object, life: PodState, where: StatusFacts, phase: str, *, now: float
) -> list[dict[str, Any]]:
    """Return the pod's conditions, with those that others set."""
    current = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    has_ended = phase in ("Succeeded", "Failed")
    ready = is_ready(life)
    unready = [c.name for c in life.containers if c.role in _SERVING and not c.ready]
    initialised = life.stage not in (PodStage.PREPARING, PodStage.INITIALISING) and not (
        life.stage is not PodStage.RUNNING and _initialising(life)
    )
    reason: dict[str, str] = {}
    if has_ended:
        reason = {"reason": "PodCompleted" if phase == "Succeeded" else "PodFailed"}
    elif not ready:
        reason = {
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{' '.join(unready)}]",
        }
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    closed_gates = [gate for gate in gates if (current.get(gate) or {}).get("status") != "True"]
    pod_reason = reason
    if ready and closed_gates:
        pod_reason = {
            "reason": "ReadinessGatesNotReady",
            "message": f'the condition of pod readiness gate "{closed_gates[0]}" is not "True"',
        }
    init_reason: dict[str, str] = {}
    if not initialised:
        incomplete = [
            c.name
            for c in life.containers
            if c.role in (Role.INIT, Role.SIDECAR) and not _is_initialised(c)
        ]
        init_reason = {
            "reason": "ContainersNotInitialized",
            "message": f"containers with incomplete status: [{' '.join(incomplete)}]",
        }
    values = {
        "PodReadyToStartContainers": (life.stage is not PodStage.PREPARING and not has_ended, {}),
        "Initialized": (initialised, init_reason),
        "Ready": (ready and not closed_gates, {} if ready and not closed_gates else pod_reason),
        "ContainersReady": (ready, {} if ready else reason),
        "PodScheduled": (True, {}),
    }
    if where.waiting is not None:
        values["PodReadyToStartContainers"] = (
            False,
            {"reason": where.waiting.reason, "message": where.waiting.message},
        )
    conditions = []
    for type_, (is_true, detail) in values.items():
        value = "True" if is_true else "False"
        previous = current.get(type_) or {}
        changed = previous.get("status") != value
        since = rfc3339(now) if changed else previous.get("lastTransitionTime") or rfc3339(now)
        conditions.append({"type": type_, "status": value, "lastTransitionTime": since, **detail})
    foreign = [c for type_, c in current.items() if type_ not in OWN_CONDITIONS]
    return [*conditions, *map(dict, foreign)]


def _is_initialised(container: ContainerState) -> bool:
    """Return whether an init container has finished, or a sidecar has started."""
    if container.role is Role.SIDECAR:
        return container.started
    run = container.run
    return run is not None and not run.running and run.exit_code == 0


def _initialising(life: PodState) -> bool:
    """Return whether an init container has not finished."""
    return any(not _is_initialised(c) for c in life.containers if c.role is Role.INIT)


def _container_status(
    spec: Object, container: ContainerState, life: PodState, where: StatusFacts, *, now: float
) -> dict[str, Any]:
    """Return the status of one container."""
    run = container.run
    state = _state(container, life, where, now=now)
    last: dict[str, Any] = {}
    if "waiting" in state and run is not None and not run.running:
        last = {"terminated": _terminated_state(run)}
    elif container.previous is not None:
        last = {"terminated": _terminated_state(container.previous)}
    status: dict[str, Any] = {
        "name": container.name,
        "image": spec.get("image", ""),
        "imageID": "",
        "restartCount": run.attempt if run is not None else 0,
        "ready": _is_container_ready(container),
        "started": container.running and container.started,
        "state": state,
        "lastState": last,
    }
    if run is not None and run.started is not None:
        status["containerID"] = f"process://{container.name}-{run.attempt}"
    devices = where.devices.get(container.name)
    if devices:
        status["allocatedResourcesStatus"] = list(devices)
    return status


def _is_container_ready(container: ContainerState) -> bool:
    """Return a container's `ready` field: an init container is ready when it has finished."""
    if container.role is Role.INIT:
        return _is_initialised(container)
    return container.role in _SERVING and container.running and container.ready


def _state(
    container: ContainerState, life: PodState, where: StatusFacts, *, now: float
) -> dict[str, Any]:
    """Return a container's `state` field: waiting, running or terminated."""
    run = container.run
    is_ending = life.stage in (PodStage.ENDING, PodStage.ENDED, PodStage.REMOVED)
    if run is None or (run.running and run.started is None):
        if is_ending:
            # It has never run and never will.
            return (
                {"waiting": {"reason": "ContainerCreating"}} if run else _waiting_state(where, life)
            )
        if container.obstacle is not None:
            return {"waiting": _obstacle_fields(container.obstacle)}
        return (
            _waiting_state(where, life)
            if run is None
            else {"waiting": {"reason": "ContainerCreating"}}
        )
    if run.running:
        assert run.started is not None
        return {"running": {"startedAt": rfc3339(run.started)}}
    if not is_ending and is_restarted(life, container):
        if container.obstacle is not None:
            return {"waiting": _obstacle_fields(container.obstacle)}
        if now < restart_at(run):
            wait = int(run.backoff)
            text = f"back-off {_duration(wait)} restarting failed container={container.name}"
            return {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
    return {"terminated": _terminated_state(run)}


def _waiting_state(where: StatusFacts, life: PodState) -> dict[str, Any]:
    """Return the waiting state of a container that has never been started."""
    if where.waiting is not None:
        return {"waiting": _obstacle_fields(where.waiting)}
    initialising = life.stage is PodStage.INITIALISING
    return {"waiting": {"reason": "PodInitializing" if initialising else "ContainerCreating"}}


def _obstacle_fields(obstacle: Obstacle) -> dict[str, Any]:
    return {"reason": obstacle.reason, "message": obstacle.message}


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _terminated_state(run: ContainerRun) -> dict[str, Any]:
    """Return the terminated state of a run that ended."""
    reason = run.reason or ("Completed" if run.exit_code == 0 else "Error")
    state: dict[str, Any] = {"exitCode": run.exit_code, "reason": reason}
    if run.message:
        state["message"] = run.message
    state["startedAt"] = rfc3339(run.started) if run.started is not None else None
    state["finishedAt"] = rfc3339(run.finished) if run.finished is not None else None
    return state
