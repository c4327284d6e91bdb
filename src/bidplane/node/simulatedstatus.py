"""What the status of a simulated pod says, and what can be read from it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bidplane.kube.client import Object

Containers = list[dict[str, Any]]


def began_at(pod: Object) -> str:
    """When what runs now began: the pod's start, or its containers' last restart."""
    for container in pod["status"].get("containerStatuses") or ():
        running = (container.get("state") or {}).get("running")
        if running:
            return str(running["startedAt"])
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return str(ended["startedAt"])
    return str(pod["status"]["startTime"])


def restarts(pod: Object) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return max((container.get("restartCount", 0) for container in statuses), default=0)


def devices_of(pod: Object) -> list[str]:
    """What a pod that was started runs on. In its status: the claim goes when the lease goes."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        for allocated in container.get("allocatedResourcesStatus") or ():
            return [str(device["resourceID"]) for device in allocated.get("resources") or ()]
    return []


def is_ready(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return all(container.get("ready") for container in statuses)


def waiting(pod: Object, message: str, devices: Sequence[str] = ()) -> Containers:
    said = {"reason": "ContainerCreating", **({"message": message} if message else {})}
    return [
        {
            **_container(container, 0, devices),
            "ready": False,
            "started": False,
            "state": {"waiting": said},
        }
        for container in pod["spec"]["containers"]
    ]


def running(
    pod: Object, began: str, devices: Sequence[str], *, ready: bool, restarts: int = 0
) -> Containers:
    return [
        {
            **_container(container, restarts, devices),
            "ready": ready,
            "started": True,
            "state": {"running": {"startedAt": began}},
        }
        for container in pod["spec"]["containers"]
    ]


def ended(pod: Object, now: str, code: int) -> Containers:
    over = terminated(pod, now, code)
    return [
        {
            **_container(container, restarts(pod), devices_of(pod)),
            "ready": False,
            "started": False,
            "state": {"terminated": over},
        }
        for container in pod["spec"]["containers"]
    ]


def terminated(pod: Object, now: str, code: int) -> dict[str, Any]:
    reason = "Completed" if code == 0 else "Error"
    return {"exitCode": code, "reason": reason, "startedAt": began_at(pod), "finishedAt": now}


def _container(container: Object, restarts: int, devices: Sequence[str]) -> dict[str, Any]:
    allocated = [{"resourceID": device, "health": "Healthy"} for device in devices]
    return {
        **(
            {"allocatedResourcesStatus": [{"name": "claim:gpus", "resources": allocated}]}
            if devices
            else {}
        ),
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "restartCount": restarts,
        "lastState": {},
    }


def status(
    phase: str, containers: Containers, *, now: str, address: str, started: str = ""
) -> dict[str, Any]:
    ready = phase == "Running" and all(one["ready"] for one in containers)
    over = phase in ("Succeeded", "Failed")
    reason = {"reason": "PodCompleted"} if over else {"reason": "ContainersNotReady"}
    said = "True" if ready else "False"
    found: dict[str, Any] = {
        "phase": phase,
        "conditions": [
            {
                "type": type_,
                "status": value,
                "lastTransitionTime": now,
                **({} if value == "True" and not over else reason),
            }
            for type_, value in (
                ("Initialized", "True"),
                ("Ready", said),
                ("ContainersReady", said),
                ("PodScheduled", "True"),
            )
        ],
        "containerStatuses": containers,
        "hostIP": address,
    }
    return {**found, "startTime": started} if started else found
