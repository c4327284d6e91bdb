"""Reports of a pod to the API: its status when that changes, and Events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bidplane.api.kinds import POD
from bidplane.errors import NotFound
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.events import Recorder


class PodReporter:
    """Reports one pod; `pod` returns its newest version from the API."""

    def __init__(self, pod: Callable[[], Object], client: KubeClient, recorder: Recorder) -> None:
        self._pod = pod
        self._client = client
        self._recorder = recorder
        self._reported: Object | None = None
        self._event_tasks: set[asyncio.Task[None]] = set()

    async def report(self, status: Object) -> Object | None:
        """Write the status; return the pod if it is newer than ours. Raises `NotFound`."""
        if status == self._reported:
            return None
        metadata = self._pod()["metadata"]
        answer = await self._client.patch(
            POD,
            metadata["name"],
            {"metadata": {"uid": metadata["uid"]}, "status": status},
            metadata["namespace"],
            subresource="status",
        )
        self._reported = status
        return answer if _number(answer) >= _number(self._pod()) else None

    async def delete_pod(self) -> None:
        """Delete the pod from the API, after its processes have ended."""
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
        """Record an Event in the background."""
        task = asyncio.create_task(
            self._recorder.record(
                self._client,
                {"apiVersion": "v1", "kind": "Pod", **self._pod()},
                reason,
                message,
                type="Warning" if warning else "Normal",
            )
        )
        self._event_tasks.add(task)
        task.add_done_callback(self._event_tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._event_tasks, return_exceptions=True)


def _number(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)
