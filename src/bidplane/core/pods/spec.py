"""Reads a pod's spec as far as it concerns the pod's life on a node, with defaults filled in."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api.kinds import Object
from bidplane.core.pods.life import Role

_GRACE_SECONDS = 30


def containers(pod: Object) -> list[tuple[Object, Role]]:
    """Return init containers first, in start order; then the main ones; then ephemeral ones."""
    spec = pod["spec"]
    ordered = [
        (container, Role.SIDECAR if container.get("restartPolicy") == "Always" else Role.INIT)
        for container in spec.get("initContainers") or ()
    ]
    ordered += [(container, Role.MAIN) for container in spec["containers"]]
    return ordered + [
        (container, Role.EPHEMERAL) for container in spec.get("ephemeralContainers") or ()
    ]


def grace_seconds(pod: Object) -> float:
    """Return how long the pod's processes may take to end, by its spec."""
    seconds = pod["spec"].get("terminationGracePeriodSeconds")
    return float(_GRACE_SECONDS if seconds is None else seconds)


def claim_names(pod: Object) -> dict[str, str]:
    """Return a pod's ResourceClaims: their names in the API, by their names in the pod."""
    from_templates = {
        status["name"]: status.get("resourceClaimName") or ""
        for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    names = {}
    for claim in pod["spec"].get("resourceClaims") or ():
        names[claim["name"]] = claim.get("resourceClaimName") or from_templates.get(
            claim["name"], ""
        )
    return names


def container_claims(container: Object) -> Iterator[tuple[str, str]]:
    """Yield each claim a container may use, with the request in it ("" for all)."""
    for claim in (container.get("resources") or {}).get("claims") or ():
        yield claim["name"], claim.get("request") or ""


def problems(pod: Object) -> Iterator[str]:
    """Yield a sentence for each feature of a pod that this kind of node does not support."""
    spec = pod["spec"]
    if (spec.get("os") or {}).get("name") == "windows":
        yield "it asks for Windows"
    for container, _ in containers(pod):
        if container.get("volumeDevices"):
            yield f"container {container['name']}: raw block volumes are not supported"
    for volume in spec.get("volumes") or ():
        kinds = [key for key in volume if key != "name"]
        for kind in kinds:
            if kind not in _VOLUMES:
                allowed = ", ".join(_VOLUMES)
                yield f"volume {volume['name']}: {kind} is not supported; use one of {allowed}"


_VOLUMES = (
    "emptyDir",
    "hostPath",
    "configMap",
    "secret",
    "downwardAPI",
    "projected",
    "persistentVolumeClaim",
    "ephemeral",
)
