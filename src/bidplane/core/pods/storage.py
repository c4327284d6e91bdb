"""
Limits on a pod's use of its node's disk; a pod that exceeds one is evicted.

There are three limits, in the order and the words of the kubelet: an emptyDir's own, the pod's, a
container's. Other disks (claims, hostPath) are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bidplane.api.kinds import Object
from bidplane.core.pods import spec as specs
from bidplane.core.pods.life import Role
from bidplane.wire.quantity import parse as parse_quantity

REASON = "Evicted"
GRACE_SECONDS = 1.0
_RESOURCE = "ephemeral-storage"


def empty_dirs(pod: Object) -> Iterator[tuple[str, Object]]:
    """Yield the name and the source of each emptyDir volume of a pod."""
    for volume in pod["spec"].get("volumes") or ():
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        if volume.get("emptyDir") is not None or not sources:
            yield volume["name"], volume.get("emptyDir") or {}


def is_limited(pod: Object) -> bool:
    """Return whether any limit on disk use applies to a pod."""
    return any(empty_dir.get("sizeLimit") for _, empty_dir in empty_dirs(pod)) or any(
        _storage_limit(container) is not None for container, _ in specs.containers(pod)
    )


def overuse(pod: Object, volumes: Mapping[str, int], logs: Mapping[str, int]) -> str:
    """Return the kubelet's message for the first exceeded limit, or ""; `logs` are by container."""
    memory = set()
    for name, empty_dir in empty_dirs(pod):
        limit = empty_dir.get("sizeLimit")
        if empty_dir.get("medium") == "Memory":
            memory.add(name)
        if limit and 0 < parse_quantity(limit) < volumes.get(name, 0):
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    mains = [container for container, role in specs.containers(pod) if role is not Role.INIT]
    limits = [limit for container in mains if (limit := _storage_limit(container)) is not None]
    on_disk = sum(used for name, used in volumes.items() if name not in memory)
    if limits and on_disk + sum(logs.values()) > sum(map(parse_quantity, limits)):
        total = limits[0] if len(limits) == 1 else str(int(sum(map(parse_quantity, limits))))
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
    for container in mains:
        own_limit = _storage_limit(container)
        if own_limit is not None and logs.get(container["name"], 0) > parse_quantity(own_limit):
            return (
                f"Container {container['name']} exceeded its local ephemeral storage limit"
                f' "{own_limit}". '
            )
    return ""


def _storage_limit(container: Object) -> str | None:
    """Return a container's limit of ephemeral storage, if it has one."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return limits.get(_RESOURCE)
