"""What a pod's spec says of its life on a node, with the defaults filled in."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api.kinds import Object
from bidplane.core.pods.life import Role

_GRACE_SECONDS = 30


def containers(pod: Object) -> list[tuple[Object, Role]]:
    """Init containers first, as they are started; ephemeral ones, which join later, last."""
    spec = pod["spec"]
    found = [
        (container, Role.SIDECAR if container.get("restartPolicy") == "Always" else Role.INIT)
        for container in spec.get("initContainers") or ()
    ]
    found += [(container, Role.MAIN) for container in spec["containers"]]
    return found + [(one, Role.EPHEMERAL) for one in spec.get("ephemeralContainers") or ()]


def grace_seconds(pod: Object) -> float:
    """How long its processes may take to end, by its spec."""
    given = pod["spec"].get("terminationGracePeriodSeconds")
    return float(_GRACE_SECONDS if given is None else given)


def claim_names(pod: Object) -> dict[str, str]:
    """Its ResourceClaims: what the pod calls them, and what they are called."""
    made = {
        one["name"]: one.get("resourceClaimName") or ""
        for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    found = {}
    for claim in pod["spec"].get("resourceClaims") or ():
        found[claim["name"]] = claim.get("resourceClaimName") or made.get(claim["name"], "")
    return found


def container_claims(container: Object) -> Iterator[tuple[str, str]]:
    """The claims, and of each the request ("" for all), whose devices a container may use."""
    for claim in (container.get("resources") or {}).get("claims") or ():
        yield claim["name"], claim.get("request") or ""


def problems(pod: Object) -> Iterator[str]:
    """What this kind of node cannot do, so that it is said and not half done."""
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
