"""
The life of planes, with the controllers that follow them.

A plane made here belongs to no Agent: it has the controllers of any Kubernetes, and none
that bid. That is what a fork is for: what would happen, at no price.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bidplane.api.agent import name_problem
from bidplane.errors import ApiError, NotFound
from bidplane.machinery.clock import Clock
from bidplane.plane import Planes
from bidplane.runtime.credentials import HOST_PLANE
from bidplane.runtime.memory import give_back
from bidplane.wiring.controllers import Controllers

SLEEP_AFTER_SECONDS = 300.0
_IN_USE_SECONDS = 1e-6  # what is being asked something has been unused for no time at all


class PlaneLife:
    """`open_limit`: past so many open planes, those used least recently sleep at once."""

    def __init__(
        self, planes: Planes, controllers: Controllers, *, clock: Clock, open_limit: int = 4096
    ) -> None:
        self._planes, self._controllers, self._clock = planes, controllers, clock
        self._open_limit = open_limit
        self._thinning: asyncio.Task[None] | None = None
        planes.on_wake.append(controllers.woke)
        planes.on_wake.append(self._crowded)

    def list(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "name": name,
                "agent": self._controllers.has_agent(name),
                "awake": self._planes.is_awake(name),
                "bytes": self._planes.size(name),
            }
            for name in self._planes.names()
        ]

    async def create(self, name: str) -> None:
        self._free(name)
        if self._planes.uid(name) is not None:
            raise ApiError(f"there is a plane {name!r} already", code=409, reason="AlreadyExists")
        await self._planes.create(name)
        self._controllers.follow(name)

    async def delete(self, name: str) -> None:
        self._free(name)
        self._there(name)
        await self._controllers.leave(name)
        await self._planes.delete(name)

    async def sleep(self, name: str) -> None:
        self._there(name)
        if name == HOST_PLANE:
            raise ApiError("the host plane never sleeps", code=400, reason="BadRequest")
        await self.put_to_sleep([name])

    async def wake(self, name: str) -> None:
        self._there(name)
        self._planes.plane(name)

    async def fork(self, name: str, new: str) -> None:
        self._there(name)
        self._free(new)
        await self._planes.fork(name, new)
        self._controllers.follow(new)

    async def snapshot(self, name: str) -> bytes:
        with tempfile.TemporaryDirectory(dir=self._planes.root, prefix=".new-") as folder:
            await self._planes.snapshot(name, Path(folder) / "snapshot")
            return (Path(folder) / "snapshot").read_bytes()

    async def restore(self, name: str, snapshot: bytes, *, same: bool) -> None:
        self._free(name)
        with tempfile.TemporaryDirectory(dir=self._planes.root, prefix=".new-") as folder:
            path = Path(folder) / "snapshot"
            path.write_bytes(snapshot)
            await self._planes.restore(name, path, same_uid=same)
        self._controllers.follow(name)

    async def run(self, after: float = SLEEP_AFTER_SECONDS) -> None:
        """Put to sleep what nobody uses, until cancelled."""
        await self._controllers.started.wait()
        for name in self._planes.names():
            if name != HOST_PLANE and not self._controllers.has_agent(name):
                self._controllers.follow(name)
        while True:
            await self._clock.sleep(after / 4)
            tired = [name for name in self._planes.idle(after) if name != HOST_PLANE]
            await self.put_to_sleep(tired, unused_for=after)

    async def put_to_sleep(self, names: Sequence[str], *, unused_for: float = 0.0) -> None:
        for name in names:
            await self._sleep(name, unused_for)
        if names:
            give_back()

    async def _sleep(self, name: str, unused_for: float) -> None:
        # The caches first: an informer that lists again would wake it.
        await self._controllers.sleep(name)
        if not await self._planes.sleep(name, unused_for=unused_for):
            self._controllers.woke(name)

    def _crowded(self, woken: str) -> None:
        """Files and memory are bounded, planes are not."""
        if self._planes.open_count > self._open_limit and self._thinning is None:
            self._thinning = asyncio.get_running_loop().create_task(self._thin_out(woken))

    async def _thin_out(self, woken: str) -> None:
        try:
            spare = [name for name in self._planes.least_used() if name not in (HOST_PLANE, woken)]
            # Some at a time: each has to be worth the asking.
            tired = spare[: max(1, self._open_limit // 8)]
            await self.put_to_sleep(tired, unused_for=_IN_USE_SECONDS)
        finally:
            self._thinning = None

    def _there(self, name: str) -> None:
        if self._planes.uid(name) is None:
            raise NotFound(f"there is no plane {name!r}: see `bidplane plane list`")

    def _free(self, name: str) -> None:
        """Agents' planes live and die with them."""
        if name == HOST_PLANE or self._controllers.has_agent(name):
            raise ApiError(
                f"the plane {name!r} belongs to the installation or to an agent: use"
                " `bidplane agent`",
                code=409,
                reason="Conflict",
            )
        if problem := name_problem(name):
            raise ApiError(problem, code=400, reason="BadRequest")
