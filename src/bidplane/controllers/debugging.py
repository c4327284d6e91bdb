"""Ephemeral containers (`kubectl debug`) that an agent adds to its pod are added to the host's."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.kinds import POD
from bidplane.core import hostpods
from bidplane.errors import NotFound
from bidplane.kube.client import Client, Object


async def carry(host: Client, pod: Object, copy: Object, *, api: str) -> None:
    """What is there already stays as it is: nobody may change or remove one."""
    there = list(copy["spec"].get("ephemeralContainers") or ())
    known = {container["name"] for container in there}
    fresh = [
        container
        for container in hostpods.ephemeral_containers(pod, api)
        if container["name"] not in known
    ]
    if fresh:
        metadata = copy["metadata"]
        with suppress(NotFound):
            await host.patch(
                POD,
                metadata["name"],
                {"spec": {"ephemeralContainers": [*there, *fresh]}},
                metadata["namespace"],
                subresource="ephemeralcontainers",
            )
