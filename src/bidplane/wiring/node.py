"""The node: a simulated kubelet for every node of the declared fleet."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from bidplane.errors import ApiError
from bidplane.kube.client import Client
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.node import simulatedmetrics
from bidplane.node.auth import InstallationGate
from bidplane.node.fleet import Fleet
from bidplane.node.server import KubeletServer
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedruntime import SimulatedRuntime
from bidplane.runtime.certificates import Certificates
from bidplane.runtime.installation import Installation
from bidplane.runtime.serve import serve
from bidplane.wiring.hostclient import host_client

_RETRY_SECONDS = 0.2


async def run_nodes(nodes: SimulatedNodes, *, clock: Clock) -> None:
    """Register and work until cancelled."""
    while True:
        try:
            await nodes.register()
            break
        except ApiError:
            await clock.sleep(_RETRY_SECONDS)
    async with asyncio.TaskGroup() as group:
        group.create_task(nodes.pods.run())
        group.create_task(nodes.controller.run())


async def run_node(
    installation: Installation,
    listener: socket.socket,
    certificates: Certificates,
    fleet: Fleet,
    *,
    clock: Clock | None = None,
) -> None:
    """The node process; returns when cancelled."""
    clock = clock or SystemClock()
    address, port = listener.getsockname()[:2]
    client: Client = host_client(installation, user="bidplane-node", clock=clock)
    nodes = SimulatedNodes(client, fleet, clock=clock, address=address, port=port)
    gate = InstallationGate(installation.tokens(), clock=clock)
    kubelet = KubeletServer(
        SimulatedRuntime(nodes, clock=clock),
        gate,
        clock=clock,
        metrics=partial(simulatedmetrics.page, fleet, nodes, clock=clock),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(kubelet, listener, certificates))
        group.create_task(run_nodes(nodes, clock=clock))
