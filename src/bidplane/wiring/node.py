"""
Nodes: a simulated kubelet for every node of the declared fleet, and one that runs pods.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from bidplane.api.kinds import POD
from bidplane.errors import ApiError, UserError
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.machinery.informer import Informer
from bidplane.node import simulatedmetrics
from bidplane.node.agent import Identity, NodeAgent
from bidplane.node.auth import Gate, InstallationGate, ReviewGate
from bidplane.node.fleet import Fleet
from bidplane.node.inventory import Inventory, uuids
from bidplane.node.inventory.partitions import Partitions
from bidplane.node.process.runtime import ProcessRuntime
from bidplane.node.process.settings import Settings
from bidplane.node.process.supplies import TokenClient
from bidplane.node.server import KubeletServer
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedruntime import SimulatedRuntime
from bidplane.runtime.certificates import Certificates
from bidplane.runtime.installation import Installation
from bidplane.runtime.serve import serve
from bidplane.telemetry.model import Counters
from bidplane.telemetry.nvml import NvmlReader
from bidplane.wiring.hostclient import host_client

_RETRY_SECONDS = 0.2

log = structlog.get_logger(__name__)


async def run_nodes(nodes: SimulatedNodes, *, clock: Clock, beats: bool = False) -> None:
    """Register and work until cancelled; with `beats`, as nodes that say that they live."""
    while True:
        try:
            await nodes.register()
            break
        except ApiError as error:
            log.warning("cannot register", error=str(error))
            await clock.sleep(_RETRY_SECONDS)
    nodes.registered.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(nodes.pods.run())
        group.create_task(nodes.controller.run())
        if beats:
            group.create_task(nodes.beat())


async def run_node(
    installation: Installation,
    listener: socket.socket,
    certificates: Certificates,
    fleet: Fleet,
    *,
    clock: Clock | None = None,
) -> None:
    """The node process of an installation; returns when cancelled."""
    clock = clock or SystemClock()
    client: Client = host_client(installation, user="bidplane-node", clock=clock)
    gate = InstallationGate(installation.tokens(), clock=clock)
    await SimulatedFleet(client, fleet, listener, clock=clock).run(certificates, gate=gate)


class SimulatedFleet:
    """Simulated nodes and the one kubelet's server that stands for all of them."""

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        listener: socket.socket,
        *,
        alone: bool = True,
        clock: Clock,
    ) -> None:
        address, port = listener.getsockname()[:2]
        self._client, self._fleet, self._listener, self._clock = client, fleet, listener, clock
        self.nodes = SimulatedNodes(
            client, fleet, clock=clock, address=address, port=port, alone=alone
        )

    async def run(
        self,
        certificates: Certificates,
        *,
        client_ca: Path | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Until cancelled. Without a gate, a real cluster says who may ask, and wants Leases."""
        clock = self._clock
        first = self._fleet.nodes[0].name if self._fleet.nodes else ""
        kubelet = KubeletServer(
            SimulatedRuntime(self.nodes, clock=clock),
            gate or ReviewGate(self._client, first, clock=clock),
            clock=clock,
            metrics=partial(simulatedmetrics.read, self._fleet, self.nodes, clock=clock),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(kubelet, self._listener, certificates, client_ca=client_ca))
            group.create_task(run_nodes(self.nodes, clock=clock, beats=gate is None))


class ProcessNode:
    """One node whose pods are processes here: the parts, joined."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        identity: Identity,
        inventory: Inventory,
        *,
        tokens: TokenClient | None,
        clock: Clock,
    ) -> None:
        self._client, self._name, self._clock = client, identity.name, clock
        self.pods = Informer(client, POD, clock=clock, fields=f"spec.nodeName={identity.name}")
        self._inventory = inventory
        cards = inventory.instances(settings.state)
        self.partitions = (
            Partitions(cards, file=settings.state / "partitions.json") if cards else None
        )
        self.runtime = ProcessRuntime(
            client, self.pods, settings, tokens=tokens, partitions=self.partitions, clock=clock
        )
        self._devices_are(inventory.slices())
        self.agent = NodeAgent(
            client, identity, inventory, clock=clock, devices_are=self._devices_are
        )

    def _devices_are(self, slices: Sequence[Object]) -> None:
        present = uuids(slices)
        if self.partitions is not None:
            self.partitions.slices_are(slices)
            present = {key: id for key, id in present.items() if key not in self.partitions.lost}
        self.runtime.devices_are(present)

    async def _counters(self) -> list[Counters]:
        """Of this machine's GPUs; where no driver is, who holds those that are declared."""
        try:
            return await NvmlReader(self._name, xids=self._inventory.xids()).read()
        except UserError:
            return self.runtime.declared(self._inventory.slices())

    async def run(
        self,
        listener: socket.socket | None = None,
        certificates: Certificates | None = None,
        client_ca: Path | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Until cancelled; what runs on it runs on. With a listener it is asked as a kubelet is."""
        async with asyncio.TaskGroup() as group:
            if listener is not None and certificates is not None:
                asked = gate or ReviewGate(self._client, self._name, clock=self._clock)
                kubelet = KubeletServer(
                    self.runtime,
                    asked,
                    clock=self._clock,
                    metrics=self._counters,
                    usage=self.runtime.meter,
                )
                group.create_task(serve(kubelet, listener, certificates, client_ca=client_ca))
            group.create_task(self.pods.run())
            group.create_task(self.runtime.run())
            group.create_task(self.agent.run())
