"""Disk usage of a pod's folder on this node, its emptyDirs and logs, and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bidplane.core.pods import storage
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.process.records import PodFolder
from bidplane.node.process.usage import counters
from bidplane.node.stats import Disk

_LOOK_SECONDS = 10.0  # as often as a kubelet


class Storage:
    """The disk usage of one pod, measured on demand and cached for a few seconds."""

    def __init__(self, pod: Callable[[], Object], folder: PodFolder, clock: Clock) -> None:
        self.volumes: dict[str, Disk] = {}
        self.logs: dict[str, Disk] = {}
        self._pod = pod
        self._folder = folder
        self._clock = clock
        self._known_until = 0.0
        self.overuse = ""  # the message of the limit that was exceeded
        self._watching: asyncio.Task[None] | None = None

    def watch_limits(self, passed: Callable[[], None]) -> None:
        """Watch the pod's limits, if it has any; call `passed` when one is exceeded."""
        if not storage.is_limited(self._pod()) or self._watching is not None:
            return

        async def until_passed() -> None:
            self.overuse = await self._wait_for_overuse()
            passed()

        self._watching = asyncio.create_task(until_passed())

    async def stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def measure(self) -> None:
        if self._clock.now() < self._known_until:
            return
        for name, _ in storage.empty_dirs(self._pod()):
            self.volumes |= await self._folder_disk(name, self._folder.volumes / name)
        for path in self._folder.containers():
            self.logs |= await self._folder_disk(path.name, path)
        self._known_until = self._clock.now() + _LOOK_SECONDS / 2

    async def _folder_disk(self, name: str, path: Path) -> dict[str, Disk]:
        """Return the disk usage of a folder by name; empty if it does not exist."""
        size, files = await counters.folder_usage(path)
        with suppress(OSError):
            now = self._clock.now()
            return {name: counters.file_system(path, at=now, used=size, inodes_used=files)}
        return {}

    async def _wait_for_overuse(self) -> str:
        """Wait until the pod exceeds a limit; return the message."""
        while True:
            await self.measure()
            volumes = {name: disk.used for name, disk in self.volumes.items()}
            logs = {name: disk.used for name, disk in self.logs.items()}
            passed = storage.overuse(self._pod(), volumes, logs)
            if passed:
                return passed
            await self._clock.sleep(_LOOK_SECONDS)
