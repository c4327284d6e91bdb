"""
The activator's part of the data path: the Endpoints of the host, and a route for each request.

Endpoints are followed by a watch. A wake is one write, answered by the watch: nothing is polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from bidplane.activator.applications import Applications
from bidplane.activator.endpoints import LiveEndpoint, Upstream
from bidplane.activator.joined import ActivatorGroup, JoinedEndpoint
from bidplane.activator.laddered import LadderEndpoint
from bidplane.activator.refusals import refuse
from bidplane.api import labels
from bidplane.api.endpoint import ColdStart, Demand
from bidplane.api.kinds import ENDPOINT, Draft
from bidplane.api.objects import metadata_of
from bidplane.api.reading import Endpoint, read_endpoint
from bidplane.core.activation.routes import RouteTable, rules_of
from bidplane.errors import Conflict, NotFound
from bidplane.http.proxy.request import ProxiedRequest
from bidplane.kube.client import EventType, KubeClient
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.informer import Informer
from bidplane.machinery.typed import TypedCache

TICK_SECONDS = 1.0
_CONFLICT_SECONDS = 0.005
_JOINING_SECONDS = 0.05
Key = tuple[str, str]  # namespace and name on the host

log = structlog.get_logger(__name__)


class Activator:
    """Dispatches requests to Endpoints, and writes what they demand."""

    def __init__(
        self,
        host: KubeClient,
        pool: Upstream,
        *,
        clock: Clock,
        group: ActivatorGroup | None = None,
        applications: Applications | None = None,
    ) -> None:
        """`group`: other activators serve the same Endpoints; None: there are none."""
        self._host, self._pool, self._clock, self._group = host, pool, clock, group
        self._applications = applications or Applications()
        self._informer = Informer(host, ENDPOINT, clock=clock)
        self._cache: TypedCache[Endpoint] = TypedCache(self._informer, read_endpoint)
        self._cache.on_change(self._changed)
        self._live: dict[Key, LiveEndpoint] = {}
        self._routes: RouteTable[LiveEndpoint] | None = None  # None: to be built again
        self._asked: dict[Key, str] = {}  # the requests of people that were followed
        self._demands: Controller[Key] = Controller("demands", self._write, workers=16)

    def __repr__(self) -> str:
        return f"<Activator {len(self._live)} endpoints, synced {self.is_synced}>"

    @property
    def is_synced(self) -> bool:
        """True once the Endpoints are known."""
        return self._informer.synced.is_set()

    async def run(self) -> None:
        """Follow the host until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._informer.run())
                group.create_task(self._demands.run())
                group.create_task(self._tick())
        finally:
            for live in self._live.values():
                live.stop()
                live.leave()
            await self._applications.close()

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Let every Endpoint do what is due."""
        loop_now = asyncio.get_running_loop().time()
        for live in list(self._live.values()):
            live.tick(loop_now)

    # Endpoints.

    def _changed(self, event: EventType, endpoint: Endpoint) -> None:
        key = (endpoint.namespace, endpoint.name)
        live = self._live.get(key)
        if live is not None and (event == "DELETED" or live.endpoint.uid != endpoint.uid):
            live.close()
            del self._live[key]
            self._asked.pop(key, None)
            self._routes, live = None, None
        if event == "DELETED":
            return
        if live is None:
            if endpoint.status is None:
                return  # no controller has seen it yet
            self._live[key] = self._serve(endpoint, self._writer(key))
            self._asked[key] = endpoint.annotations.get(labels.ENDPOINT_REQUEST, "")
            self._routes = None
            return
        before = live.endpoint
        live.update(endpoint)
        if before.spec != endpoint.spec or _hosts(before) != _hosts(endpoint):
            self._routes = None
        self._follow_request(key, live)

    def _serve(self, endpoint: Endpoint, changed: Callable[[], None]) -> LiveEndpoint:
        now, pool, applications = self._clock.now, self._pool, self._applications
        if self._group is None:
            return LadderEndpoint(
                endpoint, pool, now=now, changed=changed, applications=applications
            )
        return JoinedEndpoint(
            endpoint, pool, self._group, now=now, changed=changed, applications=applications
        )

    def _writer(self, key: Key) -> Callable[[], None]:
        return lambda: self._demands.add(key)

    def _follow_request(self, key: Key, live: LiveEndpoint) -> None:
        """Do what a person asked for, once."""
        text = live.endpoint.annotations.get(labels.ENDPOINT_REQUEST, "")
        if text == self._asked.get(key):
            return
        self._asked[key] = text
        verb = text.partition(" ")[0]
        if verb == "wake":
            live.wake()
        elif verb == "sleep":
            live.sleep()

    async def _write(self, key: Key) -> float | None:
        """Write an Endpoint's demand to the host; return when to try again."""
        live = self._live.get(key)
        if live is None:
            return None
        if isinstance(live, JoinedEndpoint) and self._group is not None:
            return await self._write_joined(key, live, self._group)
        status = _fields(live.demand, live.cold_start)
        if isinstance(live, LadderEndpoint):
            status["ladder"] = msgspec.to_builtins(live.ladder.status())
        await self._patch(key, status)
        return None

    async def _write_joined(
        self, key: Key, live: JoinedEndpoint, group: ActivatorGroup
    ) -> float | None:
        """
        Write our report and, as the leader, the demand: it is decided, and written, on one version.
        """
        if not group.is_joined:
            return _JOINING_SECONDS
        report, demand = live.report(), live.demand_to_write()
        status: Draft = {}
        if report != live.last_report:
            status["activators"] = {group.name: msgspec.to_builtins(report)}
        if demand is not None:
            status |= _fields(demand, live.cold_start)
        if not status:
            return None
        try:
            await self._patch(key, status, conditional=demand is not None)
        except Conflict:
            return _CONFLICT_SECONDS  # the watch brings the newer version
        live.written(report, demand)
        return None

    async def _patch(self, key: Key, status: Draft, *, conditional: bool = False) -> None:
        """Write to an Endpoint's status; `conditional`: if it is the one that we know."""
        patch: Draft = {"status": status}
        cached = self._informer.get(*key) if conditional else None
        if cached is not None:
            patch["metadata"] = {"resourceVersion": metadata_of(cached)["resourceVersion"]}
        with suppress(NotFound):
            await self._host.patch(ENDPOINT, key[1], patch, key[0], subresource="status")

    # Requests.

    def dispatch(self, request: ProxiedRequest) -> None:
        """Give a request to its Endpoint."""
        if self._routes is None:
            self._routes = self._build()
        head = request.head
        live = self._routes.find(head.host, head.path, head.headers)
        if live is not None:
            live.dispatch(request)
        elif not self.is_synced:
            refuse(request, 503, "the activator is starting\n", [(b"Retry-After", b"1")])
        elif self._routes.has_host(head.host):
            refuse(request, 404, "no Endpoint of this host serves this path\n")
        else:
            refuse(request, 404, "no Endpoint serves this host\n")

    def _build(self) -> RouteTable[LiveEndpoint]:
        oldest_first = sorted(
            self._live.values(), key=lambda live: live.endpoint.creation_timestamp
        )
        return RouteTable(
            (rule, live)
            for live in oldest_first
            for rule in rules_of(live.endpoint.spec, _hosts(live.endpoint))
        )


def _fields(demand: Demand, cold_start: ColdStart | None) -> Draft:
    fields: Draft = {"demand": msgspec.to_builtins(demand)}
    if cold_start is not None:
        fields["coldStart"] = msgspec.to_builtins(cold_start)
    return fields


def _hosts(endpoint: Endpoint) -> tuple[str, ...]:
    return endpoint.status.hosts if endpoint.status is not None else ()
