"""The fleet as the gate sees it: what an action's effect is computed from."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Marks = Mapping[str, str]  # labels or annotations


class FleetPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of the host that has not ended."""

    namespace: str
    name: str
    uid: str
    agent: str = ""
    node: str = ""
    lease: str = ""
    labels: Marks = {}
    annotations: Marks = {}


class FleetLease(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    agent: str
    pool: str
    node: str
    devices: int
    rent: int = 0  # micro-credits per hour
    idle_since: str = ""  # its GPUs do nothing since; "" while they work, or are unknown
    unused_since: str = ""  # no pod is on it since
    degraded: str = ""  # what is wrong with a link of its devices
    labels: Marks = {}
    annotations: Marks = {}


class FleetNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    pools: tuple[str, ...] = ()  # that sell its devices
    devices: int = 0
    cordoned: bool = False
    ready: bool = True
    labels: Marks = {}
    annotations: Marks = {}


class FleetPool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    floor_price: str
    idle_seconds: int
    waiting: int | None = None  # bids that wait for its devices; None is unknown
    labels: Marks = {}
    annotations: Marks = {}


class FleetAgent(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    refill: str
    priority: int
    labels: Marks = {}
    annotations: Marks = {}


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    pods: tuple[FleetPod, ...] = ()
    leases: tuple[FleetLease, ...] = ()
    nodes: tuple[FleetNode, ...] = ()
    pools: tuple[FleetPool, ...] = ()
    agents: tuple[FleetAgent, ...] = ()

    @property
    def devices(self) -> int:
        return sum(node.devices for node in self.nodes)

    @property
    def leased(self) -> int:
        return sum(lease.devices for lease in self.leases)
