"""Events about host pods, copied to their originals in the planes."""

from __future__ import annotations

from bidplane.api import labels
from bidplane.api.kinds import EVENT
from bidplane.core.hosting import translation
from bidplane.errors import AlreadyExists
from bidplane.machinery.planes import PlaneCache, PlaneCaches


async def copy_event(host: PlaneCache, planes: PlaneCaches, namespace: str, name: str) -> None:
    """Copy a host pod's Event to its original pod in the plane, if both still exist."""
    event = host[EVENT].get(namespace, name)
    if event is None:
        return
    host_pod = host.pods.get(namespace, event["involvedObject"]["name"])
    if host_pod is None or (original := translation.origin(host_pod)) is None:
        return
    plane = planes.get(host_pod.labels[labels.AGENT])
    if plane is None or plane.pods.get(*original) is None:
        return
    plane_namespace, pod_name = original
    copy = {
        **{key: value for key, value in event.items() if key != "metadata"},
        "metadata": {"name": name, "namespace": plane_namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": plane_namespace,
            "name": pod_name,
            "uid": host_pod.annotations[labels.PLANE_UID],
        },
    }
    try:
        await plane.client.create(EVENT, copy, plane_namespace)
    except AlreadyExists:
        update = {key: event[key] for key in ("count", "lastTimestamp") if event.get(key)}
        await plane.client.patch(EVENT, name, update, plane_namespace)
