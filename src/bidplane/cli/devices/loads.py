"""How busy the GPUs of each lease are now, by the counters that their nodes show."""

from __future__ import annotations

import asyncio

from bidplane.api.kinds import GPU_LEASE, NODE, RESOURCE_SLICE
from bidplane.cli.devices.toprows import FleetReadings, rows
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.installation import Installation
from bidplane.telemetry.pages import NodePages, url_of

LeaseLoads = dict[tuple[str, str], float]  # percent, by agent and lease


async def read_loads(host: KubeClient, target: Installation) -> LeaseLoads:
    """
    Return the load of the busiest GPU of each lease of whole GPUs. A lease without an entry is
    unknown: nothing measures it, or its node does not answer.
    """
    clock = SystemClock()
    pages = NodePages(
        token=lambda: target.owner_token(user="owner", now=clock.now()), ca_file=target.ca_file
    )
    try:
        listings = await asyncio.gather(*map(host.list, (NODE, RESOURCE_SLICE, GPU_LEASE)))
        nodes, slices, leases = (listing.items for listing in listings)
        counters = await pages.read({url for node in nodes if (url := url_of(node))})
    finally:
        await pages.close()
    readings = FleetReadings(nodes=nodes, slices=slices, leases=leases, counters=counters)
    return lease_loads(readings)


def lease_loads(readings: FleetReadings) -> LeaseLoads:
    """Return the load of the busiest GPU of each lease of whole GPUs, where it is measured."""
    loads: LeaseLoads = {}
    for row in rows(readings):
        if row.lease and not row.share and row.utilisation_percent is not None:
            key = row.agent, row.lease
            loads[key] = max(loads.get(key, 0.0), row.utilisation_percent)
    return loads
