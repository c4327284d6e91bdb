"""
The planes of all agents, as controllers see them.

A `PlaneDriver` creates and reaches planes, wherever they run. `PlaneCaches` watches the kinds that
controllers need in every agent's plane, from the moment the agent controller opens a plane until
it closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, overload

import msgspec

from bidplane.api.agent import PlaneLimits
from bidplane.api.kinds import (
    AGENT,
    BID,
    ENDPOINT,
    GPU_LEASE,
    NODE,
    POD,
    POOL,
    RESOURCE_SLICE,
    Kind,
)
from bidplane.api.reading import (
    Agent,
    Bid,
    Endpoint,
    GPULease,
    Invalid,
    Pool,
    read_agent,
    read_bid,
    read_endpoint,
    read_lease,
    read_pool,
)
from bidplane.api.views import Node, Pod, ResourceSlice, read_pod
from bidplane.errors import ApiError
from bidplane.kube.client import EventType, FollowingClient, KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.informer import Handler, Informer, notify_all
from bidplane.machinery.noting import CachingClient
from bidplane.machinery.typed import Read, T, TypedCache

PlaneHandler = Callable[[str, EventType, Object], None]
TypedPlaneHandler = Callable[[str, EventType, T], None]


class PlaneReference(msgspec.Struct, frozen=True):
    """The identity and address of a plane."""

    uid: str
    url: str


class PlaneClients(Protocol):
    """Connects to planes by name."""

    def client(self, name: str) -> KubeClient: ...


class PlaneDriver(PlaneClients, Protocol):
    """Creates and deletes planes."""

    async def ensure(self, name: str, uid: str, limits: PlaneLimits) -> PlaneReference:
        """Return the plane of the agent with that name and uid, created if it does not exist."""
        ...

    async def delete(self, name: str) -> None:
        """Delete the plane and revoke its credentials; no error if it does not exist."""
        ...


_READERS: dict[Kind, Callable[[Object], Any]] = {
    AGENT: read_agent,
    POOL: read_pool,
    BID: read_bid,
    GPU_LEASE: read_lease,
    ENDPOINT: read_endpoint,
    POD: read_pod,
    NODE: Node,
    RESOURCE_SLICE: ResourceSlice,
}


class PlaneCache:
    """One plane: a client to write with, and informers to read from."""

    def __init__(self, name: str, client: KubeClient, kinds: Sequence[Kind], clock: Clock) -> None:
        self.name = name
        self._informers = {kind: Informer(client, kind, clock=clock) for kind in kinds}
        self._uncached = client
        self.client: KubeClient = CachingClient(client, self._informers)
        self._synced = False
        # Created first, so that their objects are current when a handler is called.
        self._typed = {
            kind: TypedCache(self._informers[kind], read)
            for kind, read in _READERS.items()
            if kind in self._informers
        }

    def __getitem__(self, kind: Kind) -> Informer:
        return self._informers[kind]

    # The kinds that are read often, as structs and views.

    @property
    def agents(self) -> TypedCache[Agent]:
        return self._typed[AGENT]

    @property
    def pools(self) -> TypedCache[Pool]:
        return self._typed[POOL]

    @property
    def bids(self) -> TypedCache[Bid]:
        return self._typed[BID]

    @property
    def leases(self) -> TypedCache[GPULease]:
        return self._typed[GPU_LEASE]

    @property
    def endpoints(self) -> TypedCache[Endpoint]:
        return self._typed[ENDPOINT]

    @property
    def pods(self) -> TypedCache[Pod]:
        return self._typed[POD]

    @property
    def nodes(self) -> TypedCache[Node]:
        return self._typed[NODE]

    @property
    def slices(self) -> TypedCache[ResourceSlice]:
        return self._typed[RESOURCE_SLICE]

    @property
    def synced(self) -> bool:
        """True once all informers have listed."""
        if not self._synced:  # read at every change in a plane; once true it stays true
            self._synced = all(informer.synced.is_set() for informer in self._informers.values())
        return self._synced

    async def run(self) -> None:
        """Keep all informers current until cancelled."""
        async with asyncio.TaskGroup() as group:
            if isinstance(self._uncached, FollowingClient):
                await self._follow(self._uncached, group)
            else:
                for informer in self._informers.values():
                    group.create_task(informer.run())

    async def _follow(self, client: FollowingClient, group: asyncio.TaskGroup) -> None:
        """
        Watch all kinds in one stream. A kind whose watch fails (its definition was deleted, its
        history is gone) gets a watch of its own from then on; the others continue.
        """
        separate: set[Kind] = set()

        def watch_separately(kind: Kind) -> None:
            if kind not in separate:
                separate.add(kind)
                group.create_task(self._informers[kind].run())

        since: dict[Kind, str] = {}
        for kind, informer in self._informers.items():
            try:
                since[kind] = await informer.relist()
            except ApiError:
                watch_separately(kind)
        with suppress(ApiError):  # the plane is gone, or does not exist yet
            async for kind, events in client.follow(since):
                if events is None:
                    watch_separately(kind)
                for event in events or ():
                    self._informers[kind].apply_event(event)
        for kind in self._informers:
            watch_separately(kind)

    async def wait_synced(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()


class PlaneCaches:
    """The open planes, by name."""

    def __init__(self, driver: PlaneClients, kinds: Sequence[Kind], *, clock: Clock) -> None:
        self._driver = driver
        self._kinds = tuple(kinds)
        self._clock = clock
        self._planes: dict[str, PlaneCache] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._handlers: dict[Kind, list[PlaneHandler]] = {}
        self._opened: list[Callable[[str], None]] = []
        self._asleep: set[str] = set()

    @overload
    def on_change(self, kind: Kind, handler: PlaneHandler) -> None: ...

    @overload
    def on_change(self, kind: Kind, handler: TypedPlaneHandler[T], *, read: Read[T]) -> None: ...

    def on_change(
        self,
        kind: Kind,
        handler: Callable[[str, EventType, Any], None],
        *,
        read: Callable[[Object], Any] | None = None,
    ) -> None:
        """
        Register a handler for changes in open planes; it gets all objects when a plane opens.

        With `read`, the handler gets structs or views, and nothing of what cannot be read. Must be
        called before the first plane is opened.
        """
        self._handlers.setdefault(kind, []).append(
            handler if read is None else _reading(read, handler)
        )

    def on_open(self, handler: Callable[[str], None]) -> None:
        """Register a handler that gets a plane's name once its caches are synced."""
        self._opened.append(handler)

    def get(self, name: str) -> PlaneCache | None:
        """
        The plane, once its caches are synced; None before that, and after `close`.

        Reading a sleeping plane wakes it: the caller has something to do there, and is notified of
        every object once it is awake.
        """
        if name in self._asleep:
            self.wake(name)
        plane = self._planes.get(name)
        return plane if plane is not None and plane.synced else None

    def awake(self, name: str) -> PlaneCache | None:
        """The plane as `get` returns it, but None for a sleeping one, which stays asleep."""
        return None if name in self._asleep else self.get(name)

    async def sleep(self, name: str) -> None:
        """Drop a plane's caches until it is read or used."""
        if name in self._planes:
            self._asleep.add(name)
            await self._drop(name)

    def wake(self, name: str) -> None:
        """Watch a sleeping plane again; no effect on others."""
        if name in self._asleep:
            self.open(name)

    def open(self, name: str) -> None:
        """Start watching a plane."""
        self._asleep.discard(name)
        if name in self._planes:
            return
        plane = PlaneCache(name, self._driver.client(name), self._kinds, self._clock)
        for kind, handlers in self._handlers.items():
            plane[kind].on_change(_once_synced(plane, kind, handlers))
        self._planes[name] = plane
        self._tasks[name] = asyncio.create_task(self._follow(plane), name=f"plane {name}")

    async def close(self, name: str) -> None:
        """Stop watching; returns when its tasks have ended."""
        self._asleep.discard(name)
        await self._drop(name)

    async def _drop(self, name: str) -> None:
        """Stop a plane's task and drop its caches."""
        self._planes.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close_all(self) -> None:
        for name in list(self._planes):
            await self.close(name)

    async def _follow(self, plane: PlaneCache) -> None:
        """Run a plane's informers; once synced, notify the handlers of all its objects."""
        async with asyncio.TaskGroup() as group:
            group.create_task(plane.run())
            await plane.wait_synced()
            for kind, handlers in self._handlers.items():
                for obj in plane[kind].items():
                    notify_all(kind, handlers, plane.name, "ADDED", obj)
            for opened in self._opened:
                opened(plane.name)


def _once_synced(plane: PlaneCache, kind: Kind, handlers: Sequence[PlaneHandler]) -> Handler:
    """
    Return a handler that drops changes until all of the plane is cached, and passes them on later.

    Before that, a reconciler would find no plane and forget the key. The plane's cache reports the
    objects that exist when it is complete.
    """

    def changed(event: EventType, obj: Object) -> None:
        if plane.synced:
            notify_all(kind, handlers, plane.name, event, obj)

    return changed


def _reading(
    read: Callable[[Object], Any], handler: Callable[[str, EventType, Any], None]
) -> PlaneHandler:
    """Return a handler that passes on what can be read."""

    def changed(plane: str, event: EventType, obj: Object) -> None:
        struct = read(obj)
        if not isinstance(struct, Invalid):
            handler(plane, event, struct)

    return changed
