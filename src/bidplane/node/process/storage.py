"""What a pod keeps in its folder on this node: its emptyDirs and its logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bidplane.core.pods import storage
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.process import usage
from bidplane.node.process.records import PodFolder
from bidplane.node.stats import Disk

_LOOK_SECONDS = 10.0  # as often as a kubelet


class Storage:
    """Of one pod; looked at when somebody asks, and not more often than need be."""

    def __init__(self, pod: Callable[[], Object], folder: PodFolder, clock: Clock) -> None:
        self.volumes: dict[str, Disk] = {}
        self.logs: dict[str, Disk] = {}
        self._pod = pod
        self._folder = folder
        self._clock = clock
        self._known_until = 0.0
        self.overuse = ""  # which limit was passed, in words
        self._weighing: asyncio.Task[None] | None = None

    def weigh(self, passed: Callable[[], None]) -> None:
        """From now on, if the pod has limits; `passed` is called when one is."""
        if not storage.is_limited(self._pod()) or self._weighing is not None:
            return

        async def until_passed() -> None:
            self.overuse = await self._until_too_much()
            passed()

        self._weighing = asyncio.create_task(until_passed())

    async def weigh_no_more(self) -> None:
        if self._weighing is not None:
            self._weighing.cancel()
            await asyncio.gather(self._weighing, return_exceptions=True)

    async def measure(self) -> None:
        if self._clock.now() < self._known_until:
            return
        for name, _ in storage.empty_dirs(self._pod()):
            self.volumes |= await self._below(name, self._folder.volumes / name)
        for path in self._folder.containers():
            self.logs |= await self._below(path.name, path)
        self._known_until = self._clock.now() + _LOOK_SECONDS / 2

    async def _below(self, name: str, path: Path) -> dict[str, Disk]:
        """Nothing for what is not there yet, or no more."""
        size, files = await usage.below(path)
        with suppress(OSError):
            now = self._clock.now()
            return {name: usage.file_system(path, at=now, used=size, inodes_used=files)}
        return {}

    async def _until_too_much(self) -> str:
        """Until a limit of the pod's is passed: which, in words."""
        while True:
            await self.measure()
            volumes = {name: disk.used for name, disk in self.volumes.items()}
            logs = {name: disk.used for name, disk in self.logs.items()}
            passed = storage.overuse(self._pod(), volumes, logs)
            if passed:
                return passed
            await self._clock.sleep(_LOOK_SECONDS)
