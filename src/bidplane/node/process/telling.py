"""Tells the API of a pod: its status when that changes, and Events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from bidplane.api.kinds import POD
from bidplane.errors import NotFound
from bidplane.kube.client import Client, Object
from bidplane.machinery.events import Recorder


class Teller:
    """For one pod; `pod` gives the API's newest of it."""

    def __init__(self, pod: Callable[[], Object], client: Client, recorder: Recorder) -> None:
        self._pod = pod
        self._client = client
        self._recorder = recorder
        self._told: dict[str, Any] | None = None
        self._sayings: set[asyncio.Task[None]] = set()

    async def report(self, status: dict[str, Any]) -> Object | None:
        """What the API has now, if that is new to us; raises `NotFound` when it has none."""
        if status == self._told:
            return None
        metadata = self._pod()["metadata"]
        answer = await self._client.patch(
            POD,
            metadata["name"],
            {"metadata": {"uid": metadata["uid"]}, "status": status},
            metadata["namespace"],
            subresource="status",
        )
        self._told = status
        return answer if _number(answer) >= _number(self._pod()) else None

    async def gone(self) -> None:
        """Nothing of it runs any more: the API may forget it."""
        metadata = self._pod()["metadata"]
        try:
            await self._client.delete(
                POD,
                metadata["name"],
                metadata["namespace"],
                grace_seconds=0,
                uid=metadata["uid"],
            )
        except NotFound:
            return

    def say(self, reason: str, message: str, warning: bool) -> None:
        """An Event; nothing waits for it."""
        task = asyncio.create_task(
            self._recorder.record(
                self._client,
                {"apiVersion": "v1", "kind": "Pod", **self._pod()},
                reason,
                message,
                type="Warning" if warning else "Normal",
            )
        )
        self._sayings.add(task)
        task.add_done_callback(self._sayings.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._sayings, return_exceptions=True)


def _number(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)
