"""
Nodes: a simulated kubelet for every node of the declared fleet, and one that runs pods.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bidplane.api.kinds import POD
from bidplane.errors import UserError
from bidplane.http.server.serve import serve
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.machinery.informer import Informer
from bidplane.node import simulatedmetrics
from bidplane.node.agent import NodeAgent, NodeIdentity
from bidplane.node.auth import InstallationGate, NodeAuthorizer, ReviewGate
from bidplane.node.fleet import Fleet
from bidplane.node.inventory import Inventory, uuids
from bidplane.node.inventory.partitions import Partitions
from bidplane.node.process.gpumemory import GpuMemory, Read
from bidplane.node.process.runtime import ProcessRuntime
from bidplane.node.process.settings import ProcessSettings
from bidplane.node.process.supplies import TokenClient
from bidplane.node.server import KubeletServer
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedruntime import SimulatedRuntime
from bidplane.runtime.identity.certificates import Certificates
from bidplane.runtime.installation import Installation
from bidplane.runtime.supervision.health import Health
from bidplane.runtime.supervision.heartbeat import beat
from bidplane.telemetry.model import Counters
from bidplane.telemetry.nvml import NvmlReader
from bidplane.wiring.hostclient import host_client


async def run_node(
    installation: Installation,
    listener: socket.socket,
    certificates: Certificates,
    fleet: Fleet,
    *,
    clock: Clock | None = None,
) -> None:
    """Run the node process of an installation until cancelled."""
    clock = clock or SystemClock()
    client: KubeClient = host_client(installation, user="bidplane-node", clock=clock)
    gate = InstallationGate(installation.tokens(), clock=clock)
    simulated = SimulatedFleet(client, fleet, listener, clock=clock)
    health = Health()
    registered = simulated.nodes.registered
    health.add("nodes", lambda: "" if registered.is_set() else "they are being registered")
    async with asyncio.TaskGroup() as group:
        group.create_task(beat(health))
        group.create_task(simulated.run(certificates, gate=gate))


class SimulatedFleet:
    """Simulated nodes, and the one kubelet server for all of them."""

    def __init__(
        self,
        client: KubeClient,
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
        gate: NodeAuthorizer | None = None,
    ) -> None:
        """
        Run until cancelled. Without a gate, a real cluster authorizes requests, and expects Leases.
        """
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
            group.create_task(self.nodes.run(beats=gate is None))


class ProcessNode:
    """One node whose pods are processes on this machine."""

    def __init__(
        self,
        client: KubeClient,
        settings: ProcessSettings,
        identity: NodeIdentity,
        inventory: Inventory,
        *,
        tokens: TokenClient | None,
        clock: Clock,
        memory: Read | None = None,
    ) -> None:
        """Run pods on this machine; `memory` reads its GPUs' memory, in place of the driver."""
        self._client, self._name, self._clock = client, identity.name, clock
        self.pods = Informer(client, POD, clock=clock, fields=f"spec.nodeName={identity.name}")
        self._inventory = inventory
        cards = inventory.instances(settings.state)
        self.partitions = (
            Partitions(cards, file=settings.state / "partitions.json") if cards else None
        )
        self.memory = GpuMemory(memory or self._measured, settings.state / "memory.json")
        self.runtime = ProcessRuntime(
            client,
            self.pods,
            settings,
            tokens=tokens,
            partitions=self.partitions,
            memory=self.memory,
            clock=clock,
        )
        self._devices_are(inventory.slices())
        self.agent = NodeAgent(
            client,
            identity,
            inventory,
            clock=clock,
            devices_are=self._devices_are,
            memory=self.memory,
        )
        self.memory.publish = self.agent.publish

    def _devices_are(self, slices: Sequence[Object]) -> None:
        present = uuids(slices)
        if self.partitions is not None:
            self.partitions.slices_are(slices)
            present = {key: id for key, id in present.items() if key not in self.partitions.lost}
        self.runtime.devices_are(present)

    def _measured(self) -> list[Counters]:
        """Read this machine's GPUs, blocking; raises `UserError` without a driver."""
        return NvmlReader(self._name, xids=self._inventory.xids()).read_now()

    async def _counters(self) -> list[Counters]:
        """
        Return the counters of this machine's GPUs; without a driver, the use of the declared ones.
        """
        try:
            return await asyncio.to_thread(self._measured)
        except UserError:
            return self.runtime.declared(self._inventory.slices())

    async def run(
        self,
        listener: socket.socket | None = None,
        certificates: Certificates | None = None,
        client_ca: Path | None = None,
        gate: NodeAuthorizer | None = None,
    ) -> None:
        """
        Run the node until cancelled; its pods go on. With a listener it serves the API of a
        kubelet.
        """
        async with asyncio.TaskGroup() as group:
            if listener is not None and certificates is not None:
                request_gate = gate or ReviewGate(self._client, self._name, clock=self._clock)
                kubelet = KubeletServer(
                    self.runtime,
                    request_gate,
                    clock=self._clock,
                    metrics=self._counters,
                    usage=self.runtime.meter,
                )
                group.create_task(serve(kubelet, listener, certificates, client_ca=client_ca))
            group.create_task(self.pods.run())
            group.create_task(self.runtime.run())
            group.create_task(self.agent.run())
