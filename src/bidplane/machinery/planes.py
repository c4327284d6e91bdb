"""
The planes of all agents, seen by controllers.

`PlaneDriver` is how a plane is made and reached, whatever is behind it. `PlaneCaches`
follows the kinds controllers care about in every agent's plane, from the moment the
agent controller opens a plane until it closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from bidplane.api.kinds import Kind
from bidplane.errors import ApiError
from bidplane.kube.client import Client, EventType, FollowingClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.informer import Handler, Informer, tell_all
from bidplane.machinery.noting import NotingClient

PlaneHandler = Callable[[str, EventType, Object], None]


class PlaneReference(msgspec.Struct, frozen=True):
    uid: str
    url: str


class PlaneDriver(Protocol):
    """Makes and ends planes."""

    async def ensure(self, name: str, uid: str) -> PlaneReference:
        """The plane of the agent with that name and uid, made if it is not there."""
        ...

    async def delete(self, name: str) -> None:
        """Nothing of it is left, and its credentials are dead; no error if it is not there."""
        ...

    def client(self, name: str) -> Client: ...


class PlaneCache:
    """One plane: a client to write with, and informers to read from."""

    def __init__(self, name: str, client: Client, kinds: Sequence[Kind], clock: Clock) -> None:
        self.name = name
        self._informers = {kind: Informer(client, kind, clock=clock) for kind in kinds}
        self._reached = client
        self.client: Client = NotingClient(client, self._informers)
        self._synced = False

    def __getitem__(self, kind: Kind) -> Informer:
        return self._informers[kind]

    @property
    def synced(self) -> bool:
        if not self._synced:  # asked of every change in a plane; once true it stays so
            self._synced = all(one.synced.is_set() for one in self._informers.values())
        return self._synced

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if isinstance(self._reached, FollowingClient):
                await self._follow(self._reached, group)
            else:
                for informer in self._informers.values():
                    group.create_task(informer.run())

    async def _follow(self, client: FollowingClient, group: asyncio.TaskGroup) -> None:
        """
        All kinds by one stream. One that has trouble (its definition was deleted, its history is
        gone) is followed by itself from then on: the others' go on as if nothing were.
        """
        alone: set[Kind] = set()

        def leave(kind: Kind) -> None:
            if kind not in alone:
                alone.add(kind)
                group.create_task(self._informers[kind].run())

        since: dict[Kind, str] = {}
        for kind, informer in self._informers.items():
            try:
                since[kind] = await informer.begin()
            except ApiError:
                leave(kind)
        with suppress(ApiError):  # of a plane that is gone, or not there yet
            async for kind, events in client.follow(since):
                if events is None:
                    leave(kind)
                for event in events or ():
                    self._informers[kind].heard(event)
        for kind in self._informers:
            leave(kind)

    async def wait_synced(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()


class PlaneCaches:
    """The open planes, by name."""

    def __init__(self, driver: PlaneDriver, kinds: Sequence[Kind], *, clock: Clock) -> None:
        self._driver = driver
        self._kinds = tuple(kinds)
        self._clock = clock
        self._planes: dict[str, PlaneCache] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._handlers: dict[Kind, list[PlaneHandler]] = {}
        self._opened: list[Callable[[str], None]] = []
        self._asleep: set[str] = set()

    def on_change(self, kind: Kind, handler: PlaneHandler) -> None:
        """
        Told of changes in planes that are open, and of all objects when a plane opens.

        Must be called before the first plane is opened.
        """
        self._handlers.setdefault(kind, []).append(handler)

    def on_open(self, handler: Callable[[str], None]) -> None:
        """Called with a plane's name once its caches are true."""
        self._opened.append(handler)

    def get(self, name: str) -> PlaneCache | None:
        """
        The plane, once its caches are true; None before that, and after `close`.

        Asking for one that sleeps wakes it: whoever asks has something to do there, and
        hears of everything in it once it is awake.
        """
        if name in self._asleep:
            self.wake(name)
        plane = self._planes.get(name)
        return plane if plane is not None and plane.synced else None

    def awake(self, name: str) -> PlaneCache | None:
        """As `get`, but one that sleeps is let sleep."""
        return None if name in self._asleep else self.get(name)

    async def sleep(self, name: str) -> None:
        """Forget all of a plane until it is asked for, or used."""
        if name in self._planes:
            self._asleep.add(name)
            await self._drop(name)

    def wake(self, name: str) -> None:
        """Follow a plane again that sleeps; nothing happens to others."""
        if name in self._asleep:
            self.open(name)

    def open(self, name: str) -> None:
        self._asleep.discard(name)
        if name in self._planes:
            return
        plane = PlaneCache(name, self._driver.client(name), self._kinds, self._clock)
        for kind, handlers in self._handlers.items():
            plane[kind].on_change(_once_synced(plane, kind, handlers))
        self._planes[name] = plane
        self._tasks[name] = asyncio.create_task(self._follow(plane), name=f"plane {name}")

    async def close(self, name: str) -> None:
        """Stop following; returns when nothing of it runs any more."""
        self._asleep.discard(name)
        await self._drop(name)

    async def _drop(self, name: str) -> None:
        self._planes.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close_all(self) -> None:
        for name in list(self._planes):
            await self.close(name)

    async def _follow(self, plane: PlaneCache) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(plane.run())
            await plane.wait_synced()
            for kind, handlers in self._handlers.items():
                for obj in plane[kind].items():
                    tell_all(kind, handlers, plane.name, "ADDED", obj)
            for opened in self._opened:
                opened(plane.name)


def _once_synced(plane: PlaneCache, kind: Kind, handlers: Sequence[PlaneHandler]) -> Handler:
    """
    Tell of changes once all of the plane is known.

    Told earlier, a reconciler would find no plane to look at and forget the key. What is
    there when the plane becomes known is told then.
    """

    def changed(event: EventType, obj: Object) -> None:
        if plane.synced:
            tell_all(kind, handlers, plane.name, event, obj)

    return changed
