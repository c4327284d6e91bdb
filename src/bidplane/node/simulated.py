"""
A kubelet that runs nothing: pods bound to its nodes live and end by their annotations.

Stands in where no GPU is. Everything else about it is a kubelet's: it registers Nodes
and ResourceSlices, starts what is bound to it, reports status, ends what is deleted
within its grace, and serves logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from bidplane.api import labels
from bidplane.api.kinds import NODE, POD, RESOURCE_SLICE
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import Client, EventType, Object
from bidplane.machinery.clock import Clock, rfc3339
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.informer import Informer, Key
from bidplane.node import fleet as fleets
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.heartbeat import RENEW_SECONDS, beat
from bidplane.node.inventory.slices import DRIVER, degraded, slices_of
from bidplane.node.simulatedpods import SimulatedPods

# A node that was so late may have been given up: it says that it is ready, and again, since who
# gave it up may do so a moment later, from what it knew before.
_LATE_SECONDS = 3 * RENEW_SECONDS
_TOLD_AGAIN = 3
_AT_ONCE = 16  # nodes registered, or kept alive, at a time

log = structlog.get_logger(__name__)


class SimulatedNodes:
    """All nodes of a declared fleet, in one process."""

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        *,
        clock: Clock,
        address: str = "",
        port: int = 0,
        alone: bool = True,
    ) -> None:
        """Where it is `alone`, simulated nodes that its fleet has not are none of anybody's."""
        self._client = client
        self._fleet = fleet
        self._clock = clock
        self._address = address
        self._port = port
        self._alone = alone
        self.registered = asyncio.Event()
        self._names = {node.name for node in fleet.nodes}
        self._beaten: dict[str, float] = {}  # by node: its last heartbeat
        self._doubted: dict[str, int] = {}  # how often it has yet to say that it is ready
        self._recorder = Recorder("bidplane-node", clock=clock)
        self.pods = Informer(client, POD, clock=clock)
        self.life = SimulatedPods(client, fleet, self._recorder, clock=clock, address=address)
        self._gone: list[Object] = []  # what its cards held for these is free
        self.controller: Controller[Key] = Controller("node", self.reconcile, workers=WORKERS)
        self.pods.on_change(self._changed)

    async def register(self) -> None:
        known: dict[str, list[Object]] = {}
        for one in (await self._client.list(RESOURCE_SLICE)).items:
            if one["spec"]["driver"] == DRIVER:
                known.setdefault(one["spec"].get("nodeName", ""), []).append(one)
        for some in self._in_turn():
            await asyncio.gather(*(self._register(node, known.get(node.name, [])) for node in some))
        if self._alone:
            await self._forget_others(known)

    def _in_turn(self) -> Iterator[list[NodeDeclaration]]:
        """All nodes, a few at a time."""
        nodes = self._fleet.nodes
        yield from (nodes[at : at + _AT_ONCE] for at in range(0, len(nodes), _AT_ONCE))

    async def beat(self) -> None:
        """For a cluster whose controllers give up nodes that do not renew their Leases."""
        while True:
            for some in self._in_turn():
                await asyncio.gather(*map(self._beat, some))
            await self._clock.sleep(RENEW_SECONDS)

    async def _beat(self, node: NodeDeclaration) -> None:
        now = self._clock.now()
        if now - self._beaten.get(node.name, now) > _LATE_SECONDS:
            self._doubted[node.name] = _TOLD_AGAIN
        try:
            await beat(self._client, node.name, now=now)
            self._beaten[node.name] = now
            if self._doubted.get(node.name):
                await self._tell(node)
                self._doubted[node.name] -= 1
        except ApiError as error:
            log.warning("retrying", node=node.name, error=str(error))

    async def _tell(self, node: NodeDeclaration) -> None:
        await self._client.patch(
            NODE, node.name, {"status": self._node_status(node)}, subresource="status"
        )

    async def _forget_others(self, slices: Mapping[str, list[Object]]) -> None:
        """What an earlier fleet had and this one has not is no longer for sale."""
        for known in (await self._client.list(NODE, labels=f"{fleets.SIMULATED}=true")).items:
            name = known["metadata"]["name"]
            if name not in self._names:
                await self._forget_slices(slices.get(name, []))
                with suppress(NotFound):
                    await self._client.delete(NODE, name)

    async def _forget_slices(self, slices: Sequence[Object]) -> None:
        for one in slices:
            with suppress(NotFound):
                await self._client.delete(RESOURCE_SLICE, one["metadata"]["name"])

    async def _register(self, node: NodeDeclaration, slices: Sequence[Object]) -> None:
        with suppress(AlreadyExists):
            await self._client.create(NODE, fleets.node_object(node))
        await self._tell(node)
        published = slices_of(fleets.machine_of(node), taint_degraded=node.taint_degraded)
        await self._publish(published, {one["metadata"]["name"]: one for one in slices})
        for words in degraded(published):
            about = await self._client.get(NODE, node.name)
            await self._recorder.record(self._client, about, "LinkDegraded", words, type="Warning")

    async def _publish(self, wanted: list[dict[str, Any]], known: Mapping[str, Object]) -> None:
        """All of a node's slices in one generation; what an earlier fleet had of it goes."""
        names = {one["metadata"]["name"]: one for one in wanted}
        if known.keys() == names.keys() and all(
            _content(known[name]) == _content(one) for name, one in names.items()
        ):
            return
        newest = max((one["spec"]["pool"]["generation"] for one in known.values()), default=0)
        for name, one in names.items():
            one["spec"]["pool"] = {**one["spec"]["pool"], "generation": newest + 1}
            if name in known:
                await self._client.patch(RESOURCE_SLICE, name, {"spec": one["spec"]})
                continue
            await self._client.create(RESOURCE_SLICE, one)
        await self._forget_slices([one for name, one in known.items() if name not in names])

    def _node_status(self, node: NodeDeclaration) -> dict[str, Any]:
        now = rfc3339(self._clock.now())
        gpus = len(fleets.machine_of(node).gpus)
        room = {
            "cpu": "128",
            "memory": "1Ti",
            "pods": "110",
            labels.GPU_RESOURCE: str(gpus),
        }
        return {
            "capacity": room,
            "allocatable": room,
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

    def has(self, pod: Object) -> bool:
        """Whether a pod is bound to one of these nodes."""
        return pod["spec"].get("nodeName") in self._names

    def _changed(self, event: EventType, pod: Object) -> None:
        if self.has(pod):
            if event == "DELETED":
                self._gone.append(pod)
            self.controller.add((pod["metadata"]["namespace"], pod["metadata"]["name"]))

    async def reconcile(self, key: Key) -> float | None:
        while self._gone:
            await self.life.gone(self._gone.pop())
        pod = self.pods.get(*key)
        return await self.life.step(pod) if pod is not None else None


def _content(slice_: Object) -> Any:
    spec = slice_["spec"]
    return spec.get("devices"), spec.get("sharedCounters"), spec["pool"]["resourceSliceCount"]
