"""The activator: requests for agents' services, on an address of its own."""

from __future__ import annotations

import asyncio
import socket

from bidplane.activator.activator import Activator
from bidplane.http.proxy.pool import BackendPool
from bidplane.http.proxy.server import ProxyServer, Site
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.runtime.installation import Installation
from bidplane.runtime.supervision.health import Health
from bidplane.runtime.supervision.heartbeat import beat
from bidplane.wiring.hostclient import host_client


async def run_activator(
    installation: Installation, listener: socket.socket, *, clock: Clock | None = None
) -> None:
    """Run the activator process until cancelled."""
    clock = clock or SystemClock()
    client = host_client(installation, user="bidplane-activator", clock=clock)
    pool = BackendPool()
    activator = Activator(client, pool, clock=clock)
    server = ProxyServer(Site(activator.dispatch), pool)
    health = Health()
    health.add("endpoints", lambda: "" if activator.is_synced else "they are not known yet")
    try:
        await server.start(listener)
        async with asyncio.TaskGroup() as group:
            group.create_task(beat(health))
            group.create_task(activator.run())
    finally:
        await server.close()
        await client.close()
