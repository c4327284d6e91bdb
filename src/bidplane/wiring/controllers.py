"""
The controllers, in one list: everything that Bidplane does by itself.

All of them speak to the host through one client and to the agents' planes through one
driver, and share two sets of caches. None of them knows another.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bidplane.api.kinds import (
    AGENT,
    BID,
    ENDPOINT,
    EVENT,
    GPU_LEASE,
    NODE,
    POD,
    POD_TEMPLATE,
    POOL,
    PROPOSAL,
    RESOURCE_SLICE,
    Kind,
)
from bidplane.controllers.agent import AgentController
from bidplane.controllers.bid import BidHeartbeatController
from bidplane.controllers.endpoint import KEDA, EndpointController, KedaController
from bidplane.controllers.lease import LeaseController
from bidplane.controllers.node import KINDS as NODE_KINDS
from bidplane.controllers.node import NodeLifecycleController
from bidplane.controllers.offer import OffersController
from bidplane.controllers.pod import RequeueController
from bidplane.controllers.proposal import ProposalController
from bidplane.controllers.scheduler import SchedulerController
from bidplane.controllers.syncer import SyncerController
from bidplane.controllers.usage import UsageController
from bidplane.controllers.workloads import KINDS as WORKLOAD_KINDS
from bidplane.controllers.workloads import Workloads
from bidplane.controllers.workloads.reconciler import Sites
from bidplane.core.activation.hostassignment import DEFAULT_DOMAIN
from bidplane.core.activation.warmpath import ActivatorAddress
from bidplane.gate.service import Gate
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache, PlaneCaches, PlaneDriver, PlaneHandler
from bidplane.runtime.identity.credentials import HOST_PLANE

HOST_KINDS = (AGENT, BID, ENDPOINT, GPU_LEASE, POD, NODE, POOL, RESOURCE_SLICE, EVENT)
PLANE_KINDS = tuple(
    dict.fromkeys((POD, BID, ENDPOINT, GPU_LEASE, NODE, POD_TEMPLATE, *KEDA, *WORKLOAD_KINDS))
)


class Controllers:
    """
    The controllers of a server. `own_host`: the host is a plane of ours, which lacks the
    controllers that a cluster has. Without a `gate` nobody judges Proposals. `domain`: agents'
    Endpoints have names below it, and `activator` serves them.
    """

    def __init__(
        self,
        host: KubeClient,
        driver: PlaneDriver,
        *,
        clock: Clock,
        own_host: bool = False,
        gate: Gate | None = None,
        domain: str = DEFAULT_DOMAIN,
        activator: ActivatorAddress | None = None,
    ) -> None:
        self._own_host = own_host
        self.started = (
            asyncio.Event()
        )  # the host is synced, so it is known which planes have agents
        proposals = (PROPOSAL,) if gate is not None else ()
        kinds = dict.fromkeys(
            (*HOST_KINDS, *proposals, *((*WORKLOAD_KINDS, *NODE_KINDS) if own_host else ()))
        )
        self._host = PlaneCache(HOST_PLANE, host, tuple(kinds), clock)
        self._planes = PlaneCaches(driver, PLANE_KINDS, clock=clock)
        self._bare = PlaneCaches(driver, WORKLOAD_KINDS, clock=clock)  # planes of no agent
        self.all: list[Controller[Any]] = [
            # An Agent becomes a namespace on the host and a plane.
            AgentController(host, self._host[AGENT], driver, self._planes).controller,
            # A pending pod becomes a bid; a won bid binds its pod; an idle lease is released.
            SchedulerController(self._host, self._planes, clock=clock).controller,
            # Bids and bound pods go to the host; their status comes back.
            SyncerController(self._host, self._planes, clock=clock).controller,
            # A lease becomes a node in the plane; a notice evicts.
            LeaseController(self._host, self._planes, clock=clock).controller,
            # CPU that owners offer becomes a node of planes with pods without GPUs.
            OffersController(self._host, self._planes, clock=clock).controller,
            # A program's lease is claimed while its heartbeat goes on.
            BidHeartbeatController(self._host, self._planes, clock=clock).controller,
            # A lease that stays without pods gets a condition.
            UsageController(self._host, self._planes, clock=clock).controller,
            # An Endpoint goes to the host; its target is scaled as its traffic asks.
            EndpointController(
                self._host, self._planes, clock=clock, domain=domain, activator=activator
            ).controller,
            # KEDA's HTTPScaledObjects and InterceptorRoutes become Endpoints.
            KedaController(self._planes, clock=clock).controller,
            # An evicted bare pod comes back and bids again.
            RequeueController(self._planes).controller,
            # Deployments, Jobs, … as in any Kubernetes.
            *Workloads(self._sites(), clock=clock).controllers,
        ]
        if own_host:
            # A node without a heartbeat is marked not ready; its pods are evicted.
            self.all.append(NodeLifecycleController(self._host, clock=clock).controller)

        self.proposals: ProposalController | None = None
        if gate is not None:
            # A Proposal is judged, and carried out once it is allowed.
            self.proposals = ProposalController(gate, self._host[PROPOSAL])
            self.all.append(self.proposals.controller)

    def _sites(self) -> Sites:
        def get(name: str) -> PlaneCache | None:
            if name != HOST_PLANE:
                return self._planes.get(name) or self._bare.get(name)
            return self._host if self._own_host else None

        def on_change(kind: Kind, handler: PlaneHandler) -> None:
            self._planes.on_change(kind, handler)
            self._bare.on_change(kind, handler)
            if self._own_host:
                self._host[kind].on_change(lambda event, obj: handler(HOST_PLANE, event, obj))

        return Sites(get, on_change)

    # Planes of no agent, and planes that sleep; see `life`.

    def has_agent(self, name: str) -> bool:
        return self.agent(name) is not None

    def agent(self, name: str) -> Object | None:
        return self._host[AGENT].get(None, name)

    def follow(self, name: str) -> None:
        self._bare.open(name)

    async def unfollow(self, name: str) -> None:
        await self._bare.close(name)

    async def sleep(self, name: str) -> None:
        await self._planes.sleep(name)
        await self._bare.sleep(name)

    def resume(self, name: str) -> None:
        self._planes.wake(name)
        self._bare.wake(name)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._host.run())
                # The host must be synced before any plane: a pod that seems to have no
                # copy there would get a second one.
                await self._host.wait_synced()
                self.started.set()
                for controller in self.all:
                    group.create_task(controller.run())
        finally:
            await self._planes.close_all()
            await self._bare.close_all()
