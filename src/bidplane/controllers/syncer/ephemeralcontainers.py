"""Ephemeral containers (`kubectl debug`) that an agent adds to its pod are added to the host's."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.kinds import POD
from bidplane.api.views import Pod
from bidplane.core.hosting import hostpods
from bidplane.errors import NotFound
from bidplane.kube.client import KubeClient


async def copy_ephemeral_containers(host: KubeClient, pod: Pod, host_pod: Pod, *, api: str) -> None:
    """
    Add the pod's new ephemeral containers to its host pod; existing ones can neither change nor
    go. `api` is the address of the pod's plane.
    """
    existing = list(host_pod.spec.get("ephemeralContainers") or ())
    existing_names = {container["name"] for container in existing}
    added = [
        container
        for container in hostpods.ephemeral_containers(pod, api)
        if container["name"] not in existing_names
    ]
    if added:
        change = {"spec": {"ephemeralContainers": [*existing, *added]}}
        with suppress(NotFound):
            await host.patch(
                POD, host_pod.name, change, host_pod.namespace, subresource="ephemeralcontainers"
            )
