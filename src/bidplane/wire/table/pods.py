"""The row of a pod, whose `STATUS` and `RESTARTS` are derived from its containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.wire.table.human import age

NONE = "<none>"
Object = Mapping[str, Any]


def row(pod: Object, now: float) -> list[Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    statuses = status.get("containerStatuses") or ()
    ready = sum(
        bool(container.get("ready") and (container.get("state") or {}).get("running"))
        for container in statuses
    )
    addresses = [entry["ip"] for entry in status.get("podIPs") or ()]
    gates = spec.get("readinessGates") or ()
    passed = sum(
        condition.get("status") == "True"
        for gate in gates
        for condition in status.get("conditions") or ()
        if condition.get("type") == gate.get("conditionType")
    )
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec.get('containers') or ())}",
        reason(pod),
        _restarts(statuses, now),
        age(pod["metadata"].get("creationTimestamp"), now),
        addresses[0] if addresses else status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{passed}/{len(gates)}" if gates else NONE,
    ]


def reason(pod: Object) -> str:
    """Return one word for the pod's state: the worst a container reports, else the phase."""
    status = pod.get("status") or {}
    word = status.get("reason") or status.get("phase", "")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            word = "SchedulingGated"
    starting = _init_reason(pod)
    if starting:
        word = starting
    else:
        running = False
        for container in reversed(status.get("containerStatuses") or ()):
            state = container.get("state") or {}
            waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
            if waiting.get("reason"):
                word = waiting["reason"]
            elif ended:
                word = _ended(ended)
            elif container.get("ready") and "running" in state:
                running = True
        if word == "Completed" and running:
            ready = any(
                c.get("type") == "Ready" and c.get("status") == "True"
                for c in status.get("conditions") or ()
            )
            word = "Running" if ready else "NotReady"
    if "deletionTimestamp" in pod["metadata"]:
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return str(word)


def _ended(state: Mapping[str, Any]) -> str:
    if state.get("reason"):
        return str(state["reason"])
    if state.get("signal"):
        return f"Signal:{state['signal']}"
    return f"ExitCode:{state.get('exitCode', 0)}"


def _init_reason(pod: Object) -> str:
    total = len((pod.get("spec") or {}).get("initContainers") or ())
    for index, container in enumerate((pod.get("status") or {}).get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if ended is not None:
            return f"Init:{_ended(ended)}"
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{total}"
    return ""


def _restarts(statuses: Any, now: float) -> str:
    count, last = 0, ""
    for container in statuses:
        count += container.get("restartCount", 0)
        ended = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
        last = max(last, ended)
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)
