"""
The scheduler of every agent: one reconciler, keyed by plane.

Reads the plane's caches, lets `core/scheduling` decide, and carries the plan out. Keeps no state
between two passes.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.agent import AgentSpec
from bidplane.api.kinds import (
    BID,
    DEVICE_CLASS,
    GPU_LEASE,
    JOB,
    NAMESPACE,
    NODE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    Kind,
    Object,
)
from bidplane.api.objects import status_of
from bidplane.api.pool import list_price
from bidplane.api.views import Pod
from bidplane.controllers.scheduler.execution import SchedulingExecutor
from bidplane.controllers.scheduler.explanations import without_brief_waits
from bidplane.core import scheduling
from bidplane.core.hosting.translation import host_name
from bidplane.core.scheduling import PlaneSnapshot
from bidplane.core.scheduling.podclaims import ADMIN_LABEL, Devices
from bidplane.errors import NotFound
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.planes import PlaneCache, PlaneCaches

PACE_SECONDS = 5.0  # how often a strategy is asked what to offer now
KINDS = (POD, BID, GPU_LEASE, NODE)
_LOOK_AGAIN_SECONDS = 1.0  # between two passes while claims matter: they are not watched
_GATHER_SECONDS = 0.01
_REST_SECONDS = 0.05


class SchedulerController:
    """
    Turns the pods of each plane into bids, binds pods to won leases, and explains why pods wait.
    """

    def __init__(self, host: PlaneCache, planes: PlaneCaches, *, clock: Clock) -> None:
        self._host = host
        self._planes = planes
        self._clock = clock
        self._executor = SchedulingExecutor(clock=clock)
        self._claimless: set[str] = set()  # planes without a reserved claim
        self.controller = Controller(
            "scheduler", self.reconcile, workers=WORKERS, rest=_REST_SECONDS
        )
        for kind in KINDS:
            planes.on_change(kind, lambda plane, event, obj: self._reconcile_soon(plane))
        planes.on_open(self._opened)
        host.agents.on_change(lambda event, agent: self.controller.add(agent.name))

    def _reconcile_soon(self, plane: str) -> None:
        """
        Reconcile the plane after a short delay: one pass covers all changes of about the same
        time.
        """
        self.controller.add_after(plane, _GATHER_SECONDS)

    def _opened(self, plane: str) -> None:
        self._claimless.discard(plane)  # its claims may have been restored
        self.controller.add(plane)

    async def reconcile(self, plane: str) -> float | None:
        """Plan and carry out the scheduling of one plane; return the delay until the next pass."""
        cache = self._planes.get(plane)
        if cache is None or self._host.agents.is_invalid(None, plane):
            return None
        snapshot = await self._snapshot(cache)
        plan = scheduling.plan(snapshot)
        operations, has_brief_waits = without_brief_waits(plan, snapshot.now)
        await self._executor.carry_out(cache.client, operations)
        has_waiting_claims = any(
            (pod.claim_references or scheduling.sources_named([pod])) and scheduling.is_pending(pod)
            for pod in map(Pod, snapshot.pods)
        )
        if has_waiting_claims or has_brief_waits:
            return _LOOK_AGAIN_SECONDS
        return PACE_SECONDS if scheduling.is_paced(snapshot) else None

    async def _snapshot(self, cache: PlaneCache) -> PlaneSnapshot:
        """Return the objects of a plane and the settings of its agent, as they are now."""
        agent = self._host.agents.get(None, cache.name)
        spec = agent.spec if agent is not None else AgentSpec(owner="")
        pods = cache.pods.items()
        bids, leases, nodes = cache.bids.items(), cache.leases.items(), cache.nodes.items()
        return PlaneSnapshot(
            pods=pods,
            bids=bids,
            leases=leases,
            nodes=nodes,
            unreadable_bids=frozenset(host_name(*key) for key in cache.bids.invalid()),
            max_price=spec.max_price,
            priority=spec.priority,
            list_prices=self._list_prices(),
            suspended=spec.suspended,
            devices=await self._devices(cache),
            jobs=cache[JOB].items(),
            groups=await self._groups(cache),
            strategy=spec.strategy,
            now=self._clock.now(),
        )

    def _list_prices(self) -> dict[str, int]:
        """Return the list price of each pool whose terms can be read, by pool."""
        prices: dict[str, int] = {}
        for pool in self._host.pools.items():
            with suppress(ValueError):
                prices[pool.name] = list_price(pool.spec)
        return prices

    async def _devices(self, cache: PlaneCache) -> Devices:
        """
        Return the claims, templates, slices and device classes of a plane whose pods have claims.

        Listed on demand: watching four more kinds in every plane would cost more than all claims
        do.
        """
        used = any(pod.claim_references for pod in cache.pods.items())
        if not used and cache.name in self._claimless:
            return Devices()
        claims = list((await cache.client.list(RESOURCE_CLAIM)).items)
        if not used:
            if not any(status_of(claim).get("reservedFor") for claim in claims):
                self._claimless.add(cache.name)
            return Devices(claims=claims)
        self._claimless.discard(cache.name)
        return Devices(
            claims=claims,
            templates=list((await cache.client.list(RESOURCE_CLAIM_TEMPLATE)).items),
            slices=list((await cache.client.list(RESOURCE_SLICE)).items),
            classes=list((await cache.client.list(DEVICE_CLASS)).items),
            namespaces=list(
                (await cache.client.list(NAMESPACE, labels=f"{ADMIN_LABEL}=true")).items
            ),
        )

    async def _groups(self, cache: PlaneCache) -> dict[Kind, list[Object]]:
        """
        Return the PodGroups of the kinds that the plane's pods name, where the agent has installed
        them.
        """
        groups: dict[Kind, list[Object]] = {}
        for source in scheduling.sources_named(cache.pods.items()):
            with suppress(NotFound):
                groups[source.kind] = list((await cache.client.list(source.kind)).items)
        return groups
