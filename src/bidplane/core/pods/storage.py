"""
What a pod may keep on its node's disk, and what happens when it keeps more: it is evicted.

Three limits, in the order and the words of the kubelet: an emptyDir's own, the pod's, a
container's. Disks of others (claims, hostPath) are not counted.
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
    for volume in pod["spec"].get("volumes") or ():
        known = [key for key, value in volume.items() if key != "name" and value is not None]
        if volume.get("emptyDir") is not None or not known:
            yield volume["name"], volume.get("emptyDir") or {}


def is_limited(pod: Object) -> bool:
    return any(one.get("sizeLimit") for _, one in empty_dirs(pod)) or any(
        _limit(container) is not None for container, _ in specs.containers(pod)
    )


def overuse(pod: Object, volumes: Mapping[str, int], logs: Mapping[str, int]) -> str:
    """Which limit was passed, in words; nothing if none was. `logs` are by container."""
    memory = set()
    for name, empty in empty_dirs(pod):
        limit = empty.get("sizeLimit")
        if empty.get("medium") == "Memory":
            memory.add(name)
        if limit and 0 < parse_quantity(limit) < volumes.get(name, 0):
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    mains = [container for container, role in specs.containers(pod) if role is not Role.INIT]
    limits = [limit for container in mains if (limit := _limit(container)) is not None]
    on_disk = sum(used for name, used in volumes.items() if name not in memory)
    if limits and on_disk + sum(logs.values()) > sum(map(parse_quantity, limits)):
        total = limits[0] if len(limits) == 1 else str(int(sum(map(parse_quantity, limits))))
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
    for container in mains:
        own = _limit(container)
        if own is not None and logs.get(container["name"], 0) > parse_quantity(own):
            return (
                f"Container {container['name']} exceeded its local ephemeral storage limit"
                f' "{own}". '
            )
    return ""


def _limit(container: Object) -> str | None:
    given = (container.get("resources") or {}).get("limits") or {}
    return given.get(_RESOURCE)
