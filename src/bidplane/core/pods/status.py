"""
What the API is told of a pod: phase, conditions, containers, in the kubelet's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from bidplane.api.kinds import Object
from bidplane.core.pods.life import Container, Obstacle, Pod, Role, Run, Stage, again, restart_at

OWN_CONDITIONS = (
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
)


_SERVING = (Role.MAIN, Role.SIDECAR)


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """What does not follow from the pod's life."""

    host_ip: str
    pod_ip: str = ""
    start_time: float | None = None
    devices: Mapping[str, Sequence[Mapping[str, Any]]] = {}  # of each container
    waiting: Obstacle | None = None  # why it cannot even be prepared


def compose(pod: Object, life: Pod, where: Where, *, now: float) -> dict[str, Any]:
    """The whole status, ready to be sent."""
    phase = phase_of(life)
    specs = {
        container["name"]: container
        for field in ("initContainers", "containers", "ephemeralContainers")
        for container in pod["spec"].get(field) or ()
    }
    statuses = {c.name: _container(specs[c.name], c, life, where, now=now) for c in life.containers}

    def of(*roles: Role) -> list[dict[str, Any]]:
        return [statuses[c.name] for c in life.containers if c.role in roles]

    status: dict[str, Any] = {
        "phase": phase,
        "conditions": _conditions(pod, life, where, phase, now=now),
        "containerStatuses": of(Role.MAIN),
        "hostIP": where.host_ip,
        "hostIPs": [{"ip": where.host_ip}],
    }
    if inits := of(Role.INIT, Role.SIDECAR):
        status["initContainerStatuses"] = inits
    if ephemeral := of(Role.EPHEMERAL):
        status["ephemeralContainerStatuses"] = ephemeral
    if where.pod_ip:
        status["podIP"] = where.pod_ip
        status["podIPs"] = [{"ip": where.pod_ip}]
    if where.start_time is not None:
        status["startTime"] = stamp(where.start_time)
    if life.halt is not None and life.halt.reason and phase == "Failed":
        status["reason"], status["message"] = life.halt.reason, life.halt.message
    generation = pod["metadata"].get("generation")
    if generation:
        status["observedGeneration"] = generation
    return status


def phase_of(life: Pod) -> str:
    mains = [c for c in life.containers if c.role is Role.MAIN]
    if life.stage is Stage.PREPARING:
        return "Pending"
    if life.stage in (Stage.ENDED, Stage.REMOVED):
        if life.halt is not None and life.halt.reason:
            return "Failed"
        good = all(c.run is not None and c.run.exit_code == 0 for c in mains)
        return "Succeeded" if good else "Failed"
    if any(c.run is not None and c.run.started is not None for c in mains):
        return "Running"
    return "Pending"


def is_ready(life: Pod) -> bool:
    """Every container that serves is ready; sidecars serve, too."""
    serving = [c for c in life.containers if c.role in _SERVING]
    return life.stage is Stage.RUNNING and all(c.running and c.ready for c in serving)


def _conditions(
    pod: Object, life: Pod, where: Where, phase: str, *, now: float
) -> list[dict[str, Any]]:
    known = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    over = phase in ("Succeeded", "Failed")
    ready = is_ready(life)
    unready = [c.name for c in life.containers if c.role in _SERVING and not c.ready]
    initialised = life.stage not in (Stage.PREPARING, Stage.INITIALISING) and not (
        life.stage is not Stage.RUNNING and _initialising(life)
    )
    because: dict[str, str] = {}
    if over:
        because = {"reason": "PodCompleted" if phase == "Succeeded" else "PodFailed"}
    elif not ready:
        because = {
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{' '.join(unready)}]",
        }
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    closed = [gate for gate in gates if (known.get(gate) or {}).get("status") != "True"]
    pod_because = because
    if ready and closed:
        pod_because = {
            "reason": "ReadinessGatesNotReady",
            "message": f'the condition of pod readiness gate "{closed[0]}" is not "True"',
        }
    init_because: dict[str, str] = {}
    if not initialised:
        incomplete = [
            c.name
            for c in life.containers
            if c.role in (Role.INIT, Role.SIDECAR) and not _through(c)
        ]
        init_because = {
            "reason": "ContainersNotInitialized",
            "message": f"containers with incomplete status: [{' '.join(incomplete)}]",
        }
    told = {
        "PodReadyToStartContainers": (life.stage is not Stage.PREPARING and not over, {}),
        "Initialized": (initialised, init_because),
        "Ready": (ready and not closed, {} if ready and not closed else pod_because),
        "ContainersReady": (ready, {} if ready else because),
        "PodScheduled": (True, {}),
    }
    if where.waiting is not None:
        told["PodReadyToStartContainers"] = (
            False,
            {"reason": where.waiting.reason, "message": where.waiting.message},
        )
    conditions = []
    for type_, (good, more) in told.items():
        value = "True" if good else "False"
        before = known.get(type_) or {}
        changed = before.get("status") != value
        at = stamp(now) if changed else before.get("lastTransitionTime") or stamp(now)
        conditions.append({"type": type_, "status": value, "lastTransitionTime": at, **more})
    others = [c for type_, c in known.items() if type_ not in OWN_CONDITIONS]
    return [*conditions, *map(dict, others)]


def _through(container: Container) -> bool:
    if container.role is Role.SIDECAR:
        return container.started
    run = container.run
    return run is not None and not run.running and run.exit_code == 0


def _initialising(life: Pod) -> bool:
    return any(not _through(c) for c in life.containers if c.role is Role.INIT)


def _container(
    spec: Object, container: Container, life: Pod, where: Where, *, now: float
) -> dict[str, Any]:
    run = container.run
    state = _state(container, life, where, now=now)
    last: dict[str, Any] = {}
    if "waiting" in state and run is not None and not run.running:
        last = {"terminated": _terminated(run)}
    elif container.previous is not None:
        last = {"terminated": _terminated(container.previous)}
    status: dict[str, Any] = {
        "name": container.name,
        "image": spec.get("image", ""),
        "imageID": "",
        "restartCount": run.attempt if run is not None else 0,
        "ready": _ready(container),
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


def _ready(container: Container) -> bool:
    if container.role is Role.INIT:
        return _through(container)
    return container.role in _SERVING and container.running and container.ready


def _state(container: Container, life: Pod, where: Where, *, now: float) -> dict[str, Any]:
    run = container.run
    over = life.stage in (Stage.ENDING, Stage.ENDED, Stage.REMOVED)
    if run is None or (run.running and run.started is None):
        if over:
            # It was never started, and never will be.
            return {"waiting": {"reason": "ContainerCreating"}} if run else _waiting(where, life)
        if container.obstacle is not None:
            return {"waiting": _told(container.obstacle)}
        return (
            _waiting(where, life) if run is None else {"waiting": {"reason": "ContainerCreating"}}
        )
    if run.running:
        assert run.started is not None
        return {"running": {"startedAt": stamp(run.started)}}
    if not over and again(life, container):
        if container.obstacle is not None:
            return {"waiting": _told(container.obstacle)}
        if now < restart_at(run):
            wait = int(run.backoff)
            text = f"back-off {_duration(wait)} restarting failed container={container.name}"
            return {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
    return {"terminated": _terminated(run)}


def _waiting(where: Where, life: Pod) -> dict[str, Any]:
    if where.waiting is not None:
        return {"waiting": _told(where.waiting)}
    initialising = life.stage is Stage.INITIALISING
    return {"waiting": {"reason": "PodInitializing" if initialising else "ContainerCreating"}}


def _told(obstacle: Obstacle) -> dict[str, Any]:
    return {"reason": obstacle.reason, "message": obstacle.message}


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _terminated(run: Run) -> dict[str, Any]:
    reason = run.reason or ("Completed" if run.exit_code == 0 else "Error")
    ended: dict[str, Any] = {"exitCode": run.exit_code, "reason": reason}
    if run.message:
        ended["message"] = run.message
    ended["startedAt"] = stamp(run.started) if run.started is not None else None
    ended["finishedAt"] = stamp(run.finished) if run.finished is not None else None
    return ended


def stamp(seconds: float) -> str:
    """A metav1.Time."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
