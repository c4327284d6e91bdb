"""
A kubelet that runs nothing: pods bound to its nodes start and end by their annotations.

For machines without GPUs. Otherwise it acts as a kubelet: it registers Nodes and ResourceSlices,
starts the pods bound to it, reports status, ends deleted pods within their grace period, and
serves logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from bidplane.api.kinds import NODE, POD, RESOURCE_SLICE
from bidplane.api.times import rfc3339
from bidplane.core.devices.freeing import LOOK_SECONDS
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import EventType, KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.informer import Informer, Key
from bidplane.node import fleet as fleets
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.heartbeat import RENEW_SECONDS, renew_lease
from bidplane.node.inventory.slices import DRIVER, degraded, slices_of, with_memory_taints
from bidplane.node.simulatedleftovers import Leftover
from bidplane.node.simulatedpods import SimulatedPods

# A node whose heartbeat was this late may have been marked NotReady: it writes its status, and
# again, since a controller with an outdated cache may mark it a moment later.
_LATE_SECONDS = 3 * RENEW_SECONDS
_READY_WRITES = 3
_AT_ONCE = 16  # nodes registered, or renewed, at a time
_RETRY_SECONDS = 0.2  # between two attempts to register

log = structlog.get_logger(__name__)


class SimulatedNodes:
    """All nodes of a declared fleet, in one process."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        *,
        clock: Clock,
        address: str = "",
        port: int = 0,
        alone: bool = True,
    ) -> None:
        """
        Simulate `fleet`. With `alone`, simulated nodes that are not in the fleet are removed.
        """
        self._client = client
        self._fleet = fleet
        self._clock = clock
        self._address = address
        self._port = port
        self._alone = alone
        self.registered = asyncio.Event()
        self._names = {node.name for node in fleet.nodes}
        self._renewed: dict[str, float] = {}  # by node: its last heartbeat
        self._ready_writes: dict[str, int] = {}  # by node: status writes that are still due
        self._recorder = Recorder("bidplane-node", clock=clock)
        self.pods = Informer(client, POD, clock=clock)
        self.life = SimulatedPods(
            client, fleet, self._recorder, clock=clock, address=address, taint=self._publish_node
        )
        self._leftovers_changed = asyncio.Event()
        self._deleted: list[Object] = []  # deleted pods, whose devices are to be freed
        self.controller: Controller[Key] = Controller("node", self.reconcile, workers=WORKERS)
        self.pods.on_change(self._changed)

    async def run(self, *, beats: bool = False) -> None:
        """Register the nodes and run them until cancelled; with `beats`, they send heartbeats."""
        while True:
            try:
                await self.register()
                break
            except ApiError as error:
                log.warning("cannot register", error=str(error))
                await self._clock.sleep(_RETRY_SECONDS)
        self.registered.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run())
            group.create_task(self.controller.run())
            group.create_task(self._watch_leftovers())
            if beats:
                group.create_task(self.beat())

    async def register(self) -> None:
        """Create or update all nodes of the fleet, with their slices."""
        slices: dict[str, list[Object]] = {}
        for slice_ in (await self._client.list(RESOURCE_SLICE)).items:
            if slice_["spec"]["driver"] == DRIVER:
                slices.setdefault(slice_["spec"].get("nodeName", ""), []).append(slice_)
        for batch in self._batches():
            await asyncio.gather(
                *(self._register(node, slices.get(node.name, [])) for node in batch)
            )
        if self._alone:
            await self._remove_other_nodes(slices)

    def _batches(self) -> Iterator[list[NodeDeclaration]]:
        """All nodes, in batches."""
        nodes = self._fleet.nodes
        yield from (nodes[start : start + _AT_ONCE] for start in range(0, len(nodes), _AT_ONCE))

    async def beat(self) -> None:
        """Renew the nodes' Leases until cancelled, for clusters that watch them."""
        while True:
            for batch in self._batches():
                await asyncio.gather(*map(self._renew, batch))
            await self._clock.sleep(RENEW_SECONDS)

    async def _renew(self, node: NodeDeclaration) -> None:
        """Renew one node's Lease, and write its status if it was late."""
        now = self._clock.now()
        if now - self._renewed.get(node.name, now) > _LATE_SECONDS:
            self._ready_writes[node.name] = _READY_WRITES
        try:
            await renew_lease(self._client, node.name, now=now)
            self._renewed[node.name] = now
            if self._ready_writes.get(node.name):
                await self._write_status(node)
                self._ready_writes[node.name] -= 1
        except ApiError as error:
            log.warning("retrying", node=node.name, error=str(error))

    async def _write_status(self, node: NodeDeclaration) -> None:
        """Write a node's status."""
        await self._client.patch(
            NODE, node.name, {"status": self._node_status(node)}, subresource="status"
        )

    async def _remove_other_nodes(self, slices: Mapping[str, list[Object]]) -> None:
        """Delete the simulated nodes of an earlier fleet, so that they are not sold."""
        for node in (await self._client.list(NODE, labels=f"{fleets.SIMULATED}=true")).items:
            name = node["metadata"]["name"]
            if name not in self._names:
                await self._delete_slices(slices.get(name, []))
                with suppress(NotFound):
                    await self._client.delete(NODE, name)

    async def _delete_slices(self, slices: Sequence[Object]) -> None:
        for slice_ in slices:
            with suppress(NotFound):
                await self._client.delete(RESOURCE_SLICE, slice_["metadata"]["name"])

    async def _register(self, node: NodeDeclaration, slices: Sequence[Object]) -> None:
        """Create or update one node and its slices."""
        try:
            await self._client.create(NODE, fleets.node_object(node))
        except AlreadyExists:
            # An earlier fleet file may have had other annotations.
            notes = {"metadata": {"annotations": fleets.node_annotations(node)}}
            await self._client.patch(NODE, node.name, notes)
        await self._write_status(node)
        published = self._slices_of(node)
        await self._publish(published, {slice_["metadata"]["name"]: slice_ for slice_ in slices})
        for message in degraded(published):
            node_object = await self._client.get(NODE, node.name)
            await self._recorder.record(
                self._client, node_object, "LinkDegraded", message, type="Warning"
            )

    async def _publish(self, slices: list[dict[str, Any]], published: Mapping[str, Object]) -> None:
        """Write a node's slices, all in one generation, and delete those of an earlier fleet."""
        by_name = {slice_["metadata"]["name"]: slice_ for slice_ in slices}
        if published.keys() == by_name.keys() and all(
            _content(published[name]) == _content(slice_) for name, slice_ in by_name.items()
        ):
            return
        newest = max(
            (slice_["spec"]["pool"]["generation"] for slice_ in published.values()), default=0
        )
        for name, slice_ in by_name.items():
            slice_["spec"]["pool"] = {**slice_["spec"]["pool"], "generation": newest + 1}
            if name in published:
                await self._client.patch(RESOURCE_SLICE, name, {"spec": slice_["spec"]})
                continue
            await self._client.create(RESOURCE_SLICE, slice_)
        await self._delete_slices(
            [slice_ for name, slice_ in published.items() if name not in by_name]
        )

    def _node_status(self, node: NodeDeclaration) -> Object:
        """The status of a node, always ready."""
        now = rfc3339(self._clock.now())
        # No count of GPUs: the ResourceSlices list them, and both together would count twice.
        capacity = {"cpu": str(node.cpu), "memory": node.host_memory, "pods": "110"}
        return {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": node.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Simulated",
                    "message": "a simulated node is always ready",
                    "lastTransitionTime": now,
                    "lastHeartbeatTime": now,
                }
            ],
        }

    # Memory that ended pods have left in use.

    @property
    def leftovers(self) -> Mapping[str, Leftover]:
        """The memory that pods which are gone have left in use, by POOL/NAME of its GPU."""
        return self.life.leftovers

    def own_pods(self) -> list[Object]:
        """The pods that are bound to these nodes."""
        return [pod for pod in self.pods.items() if self.has(pod)]

    async def _publish_node(self, name: str) -> None:
        """Publish a node's devices again, with the taints of the memory left in use."""
        node = next(node for node in self._fleet.nodes if node.name == name)
        listing = await self._client.list(RESOURCE_SLICE, fields=f"spec.nodeName={name}")
        published = {
            slice_["metadata"]["name"]: slice_
            for slice_ in listing.items
            if slice_["spec"]["driver"] == DRIVER
        }
        await self._publish(self._slices_of(node), published)
        self._leftovers_changed.set()

    def _slices_of(self, node: NodeDeclaration) -> list[dict[str, Any]]:
        slices = slices_of(fleets.machine_of(node), taint_degraded=node.taint_degraded)
        amounts = {
            device.partition("/")[2]: memory.text
            for device, memory in self.leftovers.items()
            if device.partition("/")[0] == node.name
        }
        return with_memory_taints(slices, amounts)

    async def _watch_leftovers(self) -> None:
        """Take back the taints of GPUs whose memory is free, until cancelled."""
        due: set[str] = set()  # nodes to be published again
        while True:
            if not self.leftovers and not due:
                self._leftovers_changed.clear()
                await self._leftovers_changed.wait()
            await self._clock.sleep(LOOK_SECONDS)
            now = self._clock.now()
            free = [device for device, memory in self.leftovers.items() if now >= memory.until]
            for device in free:
                del self.life.leftovers[device]
                due.add(device.partition("/")[0])
            for name in sorted(due):
                with suppress(ApiError):
                    await self._publish_node(name)
                    due.discard(name)

    def has(self, pod: Object) -> bool:
        """Return True if the pod is bound to one of these nodes."""
        return pod["spec"].get("nodeName") in self._names

    def _changed(self, event: EventType, pod: Object) -> None:
        if self.has(pod):
            if event == "DELETED":
                self._deleted.append(pod)
            self.controller.add((pod["metadata"]["namespace"], pod["metadata"]["name"]))

    async def reconcile(self, key: Key) -> float | None:
        """Advance one pod; return the seconds until its next step."""
        while self._deleted:
            await self.life.release(self._deleted.pop())
        pod = self.pods.get(*key)
        return await self.life.step(pod) if pod is not None else None


def _content(slice_: Object) -> tuple[object, ...]:
    """The parts of a slice that matter for a comparison."""
    spec = slice_["spec"]
    return spec.get("devices"), spec.get("sharedCounters"), spec["pool"]["resourceSliceCount"]
