"""Writes to pods that several controllers need. A pod that is gone meanwhile is no error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from bidplane.api.kinds import POD
from bidplane.api.objects import Fields
from bidplane.api.views import Pod
from bidplane.errors import NotFound
from bidplane.kube.client import KubeClient


async def delete_pod(client: KubeClient, pod: Pod, *, grace_seconds: int | None = None) -> None:
    """Delete this very pod, with that grace or its own."""
    with suppress(NotFound):
        await client.delete(POD, pod.name, pod.namespace, grace_seconds=grace_seconds, uid=pod.uid)


async def patch_status(client: KubeClient, pod: Pod, status: Fields) -> None:
    """Merge these fields into the status of this very pod."""
    change = {"metadata": {"uid": pod.uid}, "status": status}
    with suppress(NotFound):
        await client.patch(POD, pod.name, change, pod.namespace, subresource="status")


async def set_conditions(client: KubeClient, pod: Pod, conditions: Sequence[Fields]) -> None:
    """Replace the conditions of this very pod."""
    await patch_status(client, pod, {"conditions": list(conditions)})


async def annotate(client: KubeClient, pod: Pod, annotations: Mapping[str, str]) -> None:
    """Add annotations to this very pod."""
    change = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
    with suppress(NotFound):
        await client.patch(POD, pod.name, change, pod.namespace)
