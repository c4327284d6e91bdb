"""
The controllers, in one list: this list is the map of what Bidplane does by itself.

All of them speak to the host through one client and to the agents' planes through one
driver, and share two sets of caches. None of them knows another.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bidplane.api.kinds import (
    AGENT,
    BID,
    EVENT,
    GPU_LEASE,
    NODE,
    POD,
    POD_TEMPLATE,
    RESOURCE_SLICE,
)
from bidplane.controllers.agent import AgentController
from bidplane.controllers.lease import LeaseController
from bidplane.controllers.requeue import RequeueController
from bidplane.controllers.scheduler import SchedulerController
from bidplane.controllers.syncer import SyncerController
from bidplane.kube.client import Client
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache, PlaneCaches, PlaneDriver
from bidplane.runtime.credentials import HOST_PLANE

HOST_KINDS = (AGENT, BID, GPU_LEASE, POD, NODE, RESOURCE_SLICE, EVENT)
PLANE_KINDS = (POD, BID, GPU_LEASE, NODE, POD_TEMPLATE)


class Controllers:
    def __init__(self, host: Client, driver: PlaneDriver, *, clock: Clock) -> None:
        self._host = PlaneCache(HOST_PLANE, host, HOST_KINDS, clock)
        self._planes = PlaneCaches(driver, PLANE_KINDS, clock=clock)
        agents = self._host[AGENT]
        self.all: list[Controller[Any]] = [
            # An Agent becomes a namespace on the host and a plane.
            AgentController(host, agents, driver, self._planes).controller,
            # A pending pod becomes a bid; a won bid binds its pod; an idle lease is released.
            SchedulerController(agents, self._planes, clock=clock).controller,
            # Bids and bound pods go to the host; their status comes back.
            SyncerController(self._host, self._planes, clock=clock).controller,
            # A lease becomes a node in the plane; a notice evicts.
            LeaseController(self._host, self._planes, clock=clock).controller,
            # An evicted bare pod comes back and bids again.
            RequeueController(self._planes).controller,
        ]

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._host.run())
                # What is on the host must be known before a plane is looked at: a pod
                # that seems to have no copy there would get a second one.
                await self._host.wait_synced()
                for controller in self.all:
                    group.create_task(controller.run())
        finally:
            await self._planes.close_all()
