"""The status of a simulated pod, written and read."""

from __future__ import annotations

from collections.abc import Mapping

from bidplane.kube.client import Object

Containers = list[Object]


def began_at(pod: Object) -> str:
    """The start time of the present run: the pod's start, or its containers' last restart."""
    for container in pod["status"].get("containerStatuses") or ():
        running = (container.get("state") or {}).get("running")
        if running:
            return str(running["startedAt"])
        terminated_state = (container.get("state") or {}).get("terminated")
        if terminated_state:
            return str(terminated_state["startedAt"])
    return str(pod["status"]["startTime"])


def restarts(pod: Object) -> int:
    """The number of the pod's restarts."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return max((container.get("restartCount", 0) for container in statuses), default=0)


# By container, its devices of the pod's claims, as `allocatedResourcesStatus` lists them.
Allocated = Mapping[str, Containers]


def devices_of(pod: Object) -> list[str]:
    """The devices that a pod runs on, from its status: the claim goes when the lease goes."""
    devices = (
        str(device["resourceID"])
        for entries in allocated_of(pod).values()
        for entry in entries
        for device in entry.get("resources") or ()
    )
    return list(dict.fromkeys(devices))


def allocated_of(pod: Object) -> dict[str, Containers]:
    """The devices of each container, from the status of a started pod."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return {
        container["name"]: list(container.get("allocatedResourcesStatus") or ())
        for container in statuses
    }


def allocated(pod: Object, devices: Mapping[str, Mapping[str, str]]) -> dict[str, Containers]:
    """
    The devices of each container, from the pod's claims. `devices`: by the pod's name for a claim,
    its devices, each with the request it is for.
    """
    return {
        container["name"]: [
            {
                "name": f"claim:{use['name']}" + (f"/{use['request']}" if has_request else ""),
                "resources": [
                    {"resourceID": device, "health": "Healthy"}
                    for device, request in devices[use["name"]].items()
                    if not has_request or request.partition("/")[0] == use["request"]
                ],
            }
            for use in (container.get("resources") or {}).get("claims") or ()
            if devices.get(use["name"])
            for has_request in [bool(use.get("request"))]
        ]
        for container in pod["spec"]["containers"]
    }


def is_ready(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return all(container.get("ready") for container in statuses)


def waiting(pod: Object, message: str, devices: Allocated | None = None) -> Containers:
    """The container statuses of a pod that waits to start."""
    reason = {"reason": "ContainerCreating", **({"message": message} if message else {})}
    return [
        {
            **_container(container, 0, devices or {}),
            "ready": False,
            "started": False,
            "state": {"waiting": reason},
        }
        for container in pod["spec"]["containers"]
    ]


def running(
    pod: Object, began: str, devices: Allocated, *, ready: bool, restarts: int = 0
) -> Containers:
    """The container statuses of a running pod."""
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
    """The container statuses of a pod that ended."""
    termination = terminated(pod, now, code)
    return [
        {
            **_container(container, restarts(pod), allocated_of(pod)),
            "ready": False,
            "started": False,
            "state": {"terminated": termination},
        }
        for container in pod["spec"]["containers"]
    ]


def terminated(pod: Object, now: str, code: int) -> Object:
    """The `terminated` state of the pod's containers."""
    reason = "Completed" if code == 0 else "Error"
    return {"exitCode": code, "reason": reason, "startedAt": began_at(pod), "finishedAt": now}


def _container(container: Object, restarts: int, devices: Allocated) -> Object:
    """The fields that all container statuses share."""
    entries = devices.get(container["name"])
    return {
        **({"allocatedResourcesStatus": entries} if entries else {}),
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "restartCount": restarts,
        "lastState": {},
    }


def status(
    phase: str, containers: Containers, *, now: str, address: str, started: str = ""
) -> Object:
    """The status of a pod in `phase` with these container statuses."""
    ready = phase == "Running" and all(container["ready"] for container in containers)
    is_over = phase in ("Succeeded", "Failed")
    reason = {"reason": "PodCompleted"} if is_over else {"reason": "ContainersNotReady"}
    ready_status = "True" if ready else "False"
    pod_status = {
        "phase": phase,
        "conditions": [
            {
                "type": type_,
                "status": value,
                "lastTransitionTime": now,
                **({} if value == "True" and not is_over else reason),
            }
            for type_, value in (
                ("Initialized", "True"),
                ("Ready", ready_status),
                ("ContainersReady", ready_status),
                ("PodScheduled", "True"),
            )
        ],
        "containerStatuses": containers,
        "hostIP": address,
    }
    return {**pod_status, "startTime": started} if started else pod_status
