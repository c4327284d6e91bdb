"""
Kubernetes Events: what happened to an object, for the people who ask `kubectl describe`.

The same thing said of the same object again raises a count on the first Event. Events
are a courtesy: one that cannot be written is dropped, never retried.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from bidplane.api.kinds import EVENT
from bidplane.errors import AlreadyExists, ApiError
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, rfc3339


class Recorder:
    """Writes Events in the name of one component."""

    def __init__(self, component: str, *, clock: Clock) -> None:
        self._component = component
        self._clock = clock

    async def record(
        self,
        client: Client,
        about: Object,
        reason: str,
        message: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        metadata = about["metadata"]
        uid = metadata.get("uid", "")
        said = hashlib.sha256(f"{uid}/{reason}/{message}".encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200].rstrip('-.')}.{said}"
        namespace = metadata.get("namespace", "default")
        now = rfc3339(self._clock.now())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.get("apiVersion", "v1"),
                "kind": about["kind"],
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
                known = await client.get(EVENT, name, namespace)
                again = {"count": known.get("count", 1) + 1, "lastTimestamp": now}
                await client.patch(EVENT, name, again, namespace)
        except ApiError:
            return
