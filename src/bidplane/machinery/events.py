"""
Kubernetes Events: what happened to an object, as `kubectl describe` shows it.

Repeating an Event about an object raises the first one's count. Events are best effort: one that
cannot be written is dropped, never retried.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from bidplane.api.kinds import EVENT
from bidplane.api.reading import OurObject
from bidplane.api.times import rfc3339
from bidplane.errors import AlreadyExists, ApiError
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock


class Recorder:
    """Writes Events in the name of one component."""

    def __init__(self, component: str, *, clock: Clock) -> None:
        self._component = component
        self._clock = clock

    async def record(
        self,
        client: KubeClient,
        about: Object | OurObject,
        reason: str,
        message: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
        once: bool = False,
    ) -> None:
        """Write an Event about an object, or raise the count of an identical one: not if `once`."""
        json = about.json if isinstance(about, OurObject) else about
        metadata = json["metadata"]
        uid = metadata.get("uid", "")
        digest = hashlib.sha256(f"{uid}/{reason}/{message}".encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200].rstrip('-.')}.{digest}"
        namespace = metadata.get("namespace", "default")
        now = rfc3339(self._clock.now())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": json.get("apiVersion", "v1"),
                "kind": json["kind"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": uid,
            },
            "reason": reason,
            "message": message,
            "type": type,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": "",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            try:
                await client.create(EVENT, event, namespace)
            except AlreadyExists:
                if once:
                    return
                existing = await client.get(EVENT, name, namespace)
                update = {"count": existing.get("count", 1) + 1, "lastTimestamp": now}
                await client.patch(EVENT, name, update, namespace)
        except ApiError:
            return
