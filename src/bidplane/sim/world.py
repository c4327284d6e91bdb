"""
A whole installation under a virtual clock: the real wiring, with parts that can be killed.

Server, exchange and node are the same code as in their processes, on real SQLite files. Only the
connections differ: instead of HTTPS, a client that answers `Unavailable` while the server is down.
`kill` acts like kill -9: tasks stop at once, memory is lost, nothing is flushed; `start` continues
from what was committed.

A kill can be planned for a part's nth step, which is just before or just after one of its writes to
the API: the places where a crash can leave something half done.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from bidplane.api.agent import PlaneLimits
from bidplane.api.kinds import Kind
from bidplane.core.bidding.admission import admit
from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.errors import Unavailable
from bidplane.exchange.service import Exchange
from bidplane.kube.client import FollowingClient, KubeClient, Object, WatchEvent
from bidplane.kube.forwarding import ForwardingClient
from bidplane.ledger import Ledger
from bidplane.machinery.clock import Clock
from bidplane.node import simulatedmetrics
from bidplane.node.fleet import Fleet
from bidplane.node.simulated import SimulatedNodes
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.sim.loop import VirtualClock
from bidplane.telemetry.model import Counters
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.server import prepare_host

T = TypeVar("T")

Part = Literal["server", "exchange", "node"]
PARTS: tuple[Part, ...] = ("server", "exchange", "node")


class World:
    """An installation in virtual time; `folder` holds what survives a kill."""

    def __init__(self, folder: Path, fleet: Fleet, *, seed: int = 0) -> None:
        self.clock: Clock = VirtualClock()
        self.ledger_file = folder / "ledger.db"
        self._folder = folder
        self._fleet = fleet
        self._dice = random.Random(seed)
        self._tokens = Tokens(b"simulated")
        self._planes: Planes | None = None
        self._tasks: dict[Part, asyncio.Task[None]] = {}
        self._killers: set[asyncio.Task[None]] = set()
        self.ledger: Ledger | None = None  # while the exchange is up
        self.nodes: SimulatedNodes | None = None  # the newest
        self._down = asyncio.Event()  # set when the server of this moment is killed
        self.steps: Counter[Part] = Counter()
        self._planned: dict[tuple[Part, int], float] = {}  # how long it stays down
        self._dying: set[Part] = set()

    def __repr__(self) -> str:
        return f"<World up: {', '.join(self._tasks) or 'nothing'}>"

    def client(self, plane: str = HOST_PLANE) -> KubeClient:
        """A client as a user, the exchange or the node has it: it outlives the server."""
        return _Client(lambda: self._plane_client(plane), lambda: self._down)

    def plan_kill(self, part: Part, step: int, *, down: float) -> None:
        """Kill `part` at its `step`th step, and start it `down` seconds later."""
        self._planned[part, step] = down

    @property
    def kills_to_come(self) -> int:
        """The number of planned and running kills."""
        return len(self._planned) + len(self._killers)

    @property
    def is_whole(self) -> bool:
        """True if every part is up, and no kill is in progress."""
        return not self._killers and all(part in self._tasks for part in PARTS)

    async def start(self, part: Part) -> None:
        """Start a part that is down; returns once it runs."""
        match part:
            case "server":
                self._down = asyncio.Event()
                self._planes = Planes(
                    self._folder / "planes",
                    clock=self.clock,
                    tokens=self._tokens,
                    crds=crds_for,
                    ca="a simulated installation's certificate",
                    admit=admit,
                    durable=False,
                    inline=True,
                    dice=random.Random(self._dice.getrandbits(64)),
                )
                await prepare_host(self._planes, self._fleet)
                stepping = _SteppingPlanes(self, self._planes)
                driver = EmbeddedDriver(stepping, "https://simulated")
                host = stepping.client(HOST_PLANE)
                work = Controllers(host, driver, clock=self.clock).run()
            case "exchange":
                self.ledger = Ledger.open(self.ledger_file, durable=False)
                work = Exchange(
                    self._stepping(part),
                    self.ledger,
                    self._tokens,
                    clock=self.clock,
                    counters=self._counters,
                ).run()
            case "node":
                self.nodes = SimulatedNodes(self._stepping(part), self._fleet, clock=self.clock)
                work = self.nodes.run()
        self._spawn(part, work)

    async def _counters(self, nodes: Sequence[Object]) -> Sequence[Counters]:
        """The counters as the nodes' own servers would report them."""
        if self.nodes is None or "node" not in self._tasks:
            return []
        return await simulatedmetrics.read(self._fleet, self.nodes, clock=self.clock)

    async def kill(self, part: Part) -> None:
        """Kill a part, as kill -9 does."""
        task = self._tasks.pop(part, None)
        if part == "server" and self._planes is not None:
            # Close the files first: a dying task must not write any more.
            self._planes.abandon()
            self._planes = None
            self._down.set()
        if part == "exchange" and self.ledger is not None:
            self.ledger.close()
            self.ledger = None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    async def start_all(self) -> None:
        for part in PARTS:
            if part not in self._tasks:
                await self.start(part)

    async def stop(self) -> None:
        for killer in list(self._killers):
            killer.cancel()
        for part in reversed(PARTS):
            await self.kill(part)

    async def until(
        self, condition: Callable[[], Coroutine[object, object, bool]], *, within: float
    ) -> None:
        """Let time pass until `condition` holds; raises TimeoutError when it does not."""
        async with asyncio.timeout(within):
            while True:
                with suppress(Unavailable):
                    if await condition():
                        return
                await asyncio.sleep(0.05)

    def check(self) -> None:
        """Raise the error of a part that failed by itself, not by a kill."""
        for part, task in self._tasks.items():
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise RuntimeError(f"the {part} ended by itself") from error

    def _stepping(self, part: Part) -> KubeClient:
        """A client whose writes count as the part's steps."""
        return _SteppingClient(self, part, self.client())

    async def step(self, part: Part) -> None:
        """
        Count a step of a part, before and after each of its writes; never returns if this step
        kills it.
        """
        if part not in self._dying:
            self.steps[part] += 1
            down = self._planned.pop((part, self.steps[part]), None)
            if down is None:
                await asyncio.sleep(0)
                return
            self._dying.add(part)
            killer = asyncio.create_task(self._kill_and_start(part, down))
            self._killers.add(killer)
            killer.add_done_callback(self._killers.discard)
        # The part is dead, though its other tasks are not cancelled yet.
        await asyncio.Event().wait()

    async def _kill_and_start(self, part: Part, down: float) -> None:
        await self.kill(part)
        self._dying.discard(part)
        await asyncio.sleep(down)
        await self.start(part)

    def _spawn(self, part: Part, work: Coroutine[object, object, None]) -> None:
        self._tasks[part] = asyncio.create_task(work, name=part)

    def _plane_client(self, plane: str) -> KubeClient:
        """The running server's client of a plane; raises `Unavailable` if it is down."""
        if self._planes is None:
            raise Unavailable("the server is down")
        return self._planes.client(plane)


class _Client(ForwardingClient):
    """A client in another process: disconnected when the server is killed."""

    def __init__(self, reach: Callable[[], KubeClient], down: Callable[[], asyncio.Event]) -> None:
        super().__init__(reach)
        self._down = down

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        down = self._down()
        async for event in super().watch(
            kind, namespace, resource_version=resource_version, labels=labels, fields=fields
        ):
            if down.is_set():
                break
            yield event
        if down.is_set():
            raise Unavailable("the server was killed")

    async def follow(
        self, since: Mapping[Kind, str]
    ) -> AsyncIterator[tuple[Kind, Sequence[WatchEvent] | None]]:
        """Watch many kinds in one stream, as the server's own controllers do."""
        down, inside = self._down(), self._reach()
        assert isinstance(inside, FollowingClient)
        async for events in inside.follow(since):
            if down.is_set():
                break
            yield events
        if down.is_set():
            raise Unavailable("the server was killed")


class _SteppingClient(_Client):
    """The client that a part uses: its writes are the steps at which it can be killed."""

    def __init__(self, world: World, part: Part, inner: KubeClient) -> None:
        super().__init__(lambda: inner, lambda: world._down)
        self._world = world
        self._part = part

    async def create(
        self,
        kind: Kind,
        obj: Object,
        namespace: str | None = None,
        *,
        with_status: bool = False,
    ) -> Object:
        return await self._write(super().create(kind, obj, namespace, with_status=with_status))

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        return await self._write(super().replace(kind, obj, subresource=subresource))

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        return await self._write(
            super().patch(kind, name, patch, namespace, subresource=subresource)
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        await self._write(
            super().delete(kind, name, namespace, grace_seconds=grace_seconds, uid=uid)
        )

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        await self._write(super().bind(namespace, pod, node, uid=uid))

    async def _write(self, call: Coroutine[object, object, T]) -> T:
        """Do a write, counted as a step before and after."""
        try:
            await self._world.step(self._part)
        except BaseException:
            call.close()
            raise
        result = await call
        await self._world.step(self._part)
        return result


class _SteppingPlanes:
    """The planes as the server's own controllers use them."""

    def __init__(self, world: World, planes: Planes) -> None:
        self._world = world
        self._planes = planes

    async def create(self, name: str, uid: str | None = None) -> str:
        await self._world.step("server")
        uid_of_plane = await self._planes.create(name, uid)
        await self._world.step("server")
        return uid_of_plane

    async def limit(self, name: str, wanted: PlaneLimits, *, by_agent: bool = False) -> None:
        await self._planes.limit(name, wanted, by_agent=by_agent)

    async def delete(self, name: str) -> None:
        await self._world.step("server")
        await self._planes.delete(name)
        await self._world.step("server")

    def client(self, name: str) -> KubeClient:
        return _SteppingClient(self._world, "server", self._planes.client(name))
