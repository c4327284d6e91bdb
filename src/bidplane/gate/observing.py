"""The fleet's state, read from a host's API: by the gate, by the pilot, and by commands."""

from __future__ import annotations

from bidplane.api.kinds import AGENT, BID, ENDPOINT, GPU_LEASE, NODE, POD, POOL, RESOURCE_SLICE
from bidplane.api.reading import read_agent, read_bid, read_endpoint, read_lease, read_pool
from bidplane.api.views import Node, Pod, ResourceSlice
from bidplane.core.gate.fleet import FleetState
from bidplane.core.gate.snapshot import HostObjects, fleet_state
from bidplane.kube.client import KubeClient


async def read_fleet(host: KubeClient) -> FleetState:
    """Return the fleet as the host shows it now."""
    return fleet_state(
        HostObjects(
            agents=[read_agent(obj) for obj in (await host.list(AGENT)).items],
            pools=[read_pool(obj) for obj in (await host.list(POOL)).items],
            bids=[read_bid(obj) for obj in (await host.list(BID)).items],
            leases=[read_lease(obj) for obj in (await host.list(GPU_LEASE)).items],
            pods=[Pod(obj) for obj in (await host.list(POD)).items],
            nodes=[Node(obj) for obj in (await host.list(NODE)).items],
            endpoints=[read_endpoint(obj) for obj in (await host.list(ENDPOINT)).items],
            slices=[ResourceSlice(obj) for obj in (await host.list(RESOURCE_SLICE)).items],
        )
    )
