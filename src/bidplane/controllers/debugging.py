"""Ephemeral containers (`kubectl debug`) that an agent adds to its pod are added to the host's."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.kinds import POD
from bidplane.core.hosting import hostpods
from bidplane.errors import NotFound
from bidplane.kube.client import KubeClient, Object


async def copy_ephemeral_containers(
    host: KubeClient, pod: Object, copy: Object, *, api: str
) -> None:
    """
    Add the pod's new ephemeral containers to its host pod; existing ones can neither change nor
    go.
    """
    existing = list(copy["spec"].get("ephemeralContainers") or ())
    existing_names = {container["name"] for container in existing}
    added = [
        container
        for container in hostpods.ephemeral_containers(pod, api)
        if container["name"] not in existing_names
    ]
    if added:
        metadata = copy["metadata"]
        with suppress(NotFound):
            await host.patch(
                POD,
                metadata["name"],
                {"spec": {"ephemeralContainers": [*existing, *added]}},
                metadata["namespace"],
                subresource="ephemeralcontainers",
            )
