"""
Operations on planes, together with the controllers that follow them.

A plane created here belongs to no Agent: it has the controllers of any Kubernetes, and none
that bid. So a fork shows what would happen, at no price.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from bidplane.api.agent import PlaneLimits, name_problem
from bidplane.api.http.planes import PlaneSummary, PlaneUsage, QuarantineRelease
from bidplane.errors import ApiError, NotFound
from bidplane.machinery.clock import Clock
from bidplane.plane.planes import Planes
from bidplane.runtime.identity.credentials import HOST_PLANE
from bidplane.runtime.memory import give_back
from bidplane.runtime.supervision import running

SLEEP_AFTER_SECONDS = 300.0
_IN_USE_SECONDS = 1e-6  # a plane with a request in progress has been unused for 0 seconds


class PlaneControllers(Protocol):
    """The controllers as the life of planes needs them; the two do not import each other."""

    @property
    def started(self) -> asyncio.Event:
        """Set once it is known which planes have agents."""
        ...

    def has_agent(self, name: str) -> bool: ...

    def follow(self, name: str) -> None:
        """Work in a plane of no agent."""
        ...

    async def unfollow(self, name: str) -> None: ...

    async def sleep(self, name: str) -> None:
        """Drop the caches of a plane until it wakes."""
        ...

    def resume(self, name: str) -> None: ...


class PlaneLife:
    """
    Operations on planes. Past `open_limit` open planes, those used least recently sleep at once.
    """

    def __init__(
        self,
        planes: Planes,
        controllers: PlaneControllers,
        *,
        clock: Clock,
        open_limit: int = 4096,
    ) -> None:
        self._planes, self._controllers, self._clock = planes, controllers, clock
        self._open_limit = open_limit
        self._closing: asyncio.Task[None] | None = None
        planes.on_wake.append(controllers.resume)
        planes.on_wake.append(self._limit_open_planes)

    def list(self) -> Sequence[PlaneSummary]:
        return [
            PlaneSummary(
                name=name,
                agent=self._controllers.has_agent(name),
                awake=self._planes.is_awake(name),
                bytes=self._planes.size(name),
            )
            for name in self._planes.names()
        ]

    async def create(self, name: str) -> None:
        self._require_not_owned(name)
        if self._planes.uid(name) is not None:
            raise ApiError(f"there is a plane {name!r} already", code=409, reason="AlreadyExists")
        await self._planes.create(name)
        self._controllers.follow(name)

    async def delete(self, name: str) -> None:
        self._require_not_owned(name)
        self._require_exists(name)
        await self._controllers.unfollow(name)
        await self._planes.delete(name)

    async def limit(self, name: str, limits: Mapping[str, int]) -> None:
        self._require_exists(name)
        try:
            new_limits = msgspec.convert(limits, PlaneLimits)
        except msgspec.ValidationError as error:
            raise ApiError(f"this is no limit: {error}", code=400, reason="BadRequest") from None
        await self._planes.limit(name, new_limits)

    async def usage(self, name: str) -> PlaneUsage:
        self._require_exists(name)
        usage, limits = self._planes.usage(name)
        return PlaneUsage(usage=usage, limits=limits)

    async def release(self, name: str) -> QuarantineRelease:
        self._require_exists(name)
        return QuarantineRelease(released=running.quarantine.release(name))

    async def sleep(self, name: str) -> None:
        self._require_exists(name)
        if name == HOST_PLANE:
            raise ApiError("the host plane never sleeps", code=400, reason="BadRequest")
        await self.put_to_sleep([name])

    async def wake(self, name: str) -> None:
        self._require_exists(name)
        self._planes.plane(name)

    async def fork(self, name: str, new: str) -> None:
        self._require_exists(name)
        self._require_not_owned(new)
        await self._planes.fork(name, new)
        self._controllers.follow(new)

    async def snapshot(self, name: str) -> bytes:
        with tempfile.TemporaryDirectory(dir=self._planes.root, prefix=".new-") as folder:
            await self._planes.snapshot(name, Path(folder) / "snapshot")
            return (Path(folder) / "snapshot").read_bytes()

    async def restore(self, name: str, snapshot: bytes, *, same_uid: bool) -> None:
        self._require_not_owned(name)
        with tempfile.TemporaryDirectory(dir=self._planes.root, prefix=".new-") as folder:
            path = Path(folder) / "snapshot"
            path.write_bytes(snapshot)
            await self._planes.restore(name, path, same_uid=same_uid)
        self._controllers.follow(name)

    async def run(self, after: float = SLEEP_AFTER_SECONDS) -> None:
        """Put idle planes to sleep, until cancelled."""
        await self._controllers.started.wait()
        for name in self._planes.names():
            if name != HOST_PLANE and not self._controllers.has_agent(name):
                self._controllers.follow(name)
        while True:
            await self._clock.sleep(after / 4)
            idle_planes = [name for name in self._planes.idle(after) if name != HOST_PLANE]
            await self.put_to_sleep(idle_planes, unused_for=after)

    async def put_to_sleep(self, names: Sequence[str], *, unused_for: float = 0.0) -> None:
        for name in names:
            await self._sleep(name, unused_for)
        if names:
            give_back()

    async def _sleep(self, name: str, unused_for: float) -> None:
        # The caches first: an informer that lists again would wake it.
        await self._controllers.sleep(name)
        if not await self._planes.sleep(name, unused_for=unused_for):
            self._controllers.resume(name)

    def _limit_open_planes(self, woken: str) -> None:
        """Close planes when too many are open: files and memory are bounded, planes are not."""
        if self._planes.open_count > self._open_limit and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_least_used(woken))

    async def _close_least_used(self, woken: str) -> None:
        try:
            candidates = [
                name for name in self._planes.least_used() if name not in (HOST_PLANE, woken)
            ]
            # Several at a time, so that this need not run for each new plane.
            idle_planes = candidates[: max(1, self._open_limit // 8)]
            await self.put_to_sleep(idle_planes, unused_for=_IN_USE_SECONDS)
        finally:
            self._closing = None

    def _require_exists(self, name: str) -> None:
        if not self._planes.exists(name):
            raise NotFound(f"there is no plane {name!r}: see `bidplane plane list`")

    def _require_not_owned(self, name: str) -> None:
        """
        Raise 409 for an agent's plane, which lives and dies with its agent, and 400 for a bad name.
        """
        if name == HOST_PLANE or self._controllers.has_agent(name):
            raise ApiError(
                f"the plane {name!r} belongs to the installation or to an agent: use"
                " `bidplane agent`",
                code=409,
                reason="Conflict",
            )
        if problem := name_problem(name):
            raise ApiError(problem, code=400, reason="BadRequest")


def snapshots_in(folder: Path, planes: Planes) -> Callable[[str, str], Awaitable[str]]:
    """Return a function that copies an agent's plane into a folder, under a name of its own."""

    async def snapshot(agent: str, id: str) -> str:
        path = folder / f"{agent}-{id}.snapshot"
        temporary = path.with_suffix(".new")
        clear(temporary)
        await planes.snapshot(agent, temporary)
        os.replace(temporary, path)
        return str(path)

    def clear(unfinished: Path) -> None:
        """Remove what an interrupted copy left."""
        folder.mkdir(mode=0o700, exist_ok=True)
        unfinished.unlink(missing_ok=True)

    return snapshot
