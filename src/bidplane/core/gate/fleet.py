"""The fleet as the gate sees it: what an action's effect is computed from."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bidplane.api.endpoint import EndpointPhase
from bidplane.api.idling.ladder import Rung

Marks = Mapping[str, str]  # labels or annotations
_DOWN = (Rung.ASLEEP, Rung.STOPPED, Rung.RELEASED)  # rungs before which its application was asked


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
    busy_percent: float | None = None  # of its busiest GPU now, where somebody looked
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


class FleetEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A service that may sleep, and the traffic that its activator reports."""

    namespace: str
    name: str  # of the host's copy
    uid: str
    agent: str = ""
    service: str = ""  # its name in the agent's plane
    phase: EndpointPhase = EndpointPhase.ASLEEP
    replicas: int = 1  # while it is awake
    most_replicas: int = 0  # that its traffic may raise them to; 0 is no more
    gpus: int = 0  # of a replica, once a controller has seen its Deployment
    idle_seconds: int = 300
    holds: int | None = None  # requests that wait for it; None is unknown
    in_flight: int | None = None
    awake: bool = False  # what the traffic, or somebody, asked for last
    since: str = ""  # of that
    reason: str = ""  # of that: Request, Idle, Asked, …
    last_request: str = ""
    cold_start_seconds: float = 0.0  # of the last one
    failure: str = ""  # its pods cannot start by themselves: in their words
    pods: int = 0
    leases: tuple[str, ...] = ()  # that its pods are on, by name
    asked: str = ""  # the uid or time of the last request of a person or Proposal
    past_us: bool = False  # while it is up, its requests do not pass the activator
    own_queue: bool = False  # its application may have work that no request shows
    rung: Rung | None = None  # of its ladder; None is unknown
    not_idle: str = ""  # why it was not, by its own queue or GPUs, when it was asked last
    labels: Marks = {}
    annotations: Marks = {}

    @property
    def is_up(self) -> bool:
        """True if it was woken, or is to be."""
        return self.awake or self.phase in (EndpointPhase.WAKING, EndpointPhase.READY)

    @property
    def queue(self) -> int | None:
        """The requests that wait or are in flight; None if that is unknown."""
        if self.holds is None or self.in_flight is None or (self.past_us and self.is_up):
            return None
        return self.holds + self.in_flight

    @property
    def own_work(self) -> str:
        """
        The reason why its application may have work of its own (`spec.idle`); "" where it has
        none, or where requests show all.
        """
        if not self.own_queue or not self.is_up or self.rung in _DOWN:
            return ""
        return self.not_idle or "QueueUnknown: it is asked when its window has ended"


class FleetPool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    floor_price: str
    idle_seconds: int
    list_price: str = ""
    fields: Marks = {}  # of its spec, each as JSON
    waiting: int | None = None  # bids that wait for its devices; None is unknown
    labels: Marks = {}
    annotations: Marks = {}


class FleetAgent(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    refill: str
    priority: int
    movable: bool = False  # its leases may be moved
    fields: Marks = {}  # of its spec, each as JSON
    labels: Marks = {}
    annotations: Marks = {}


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    pods: tuple[FleetPod, ...] = ()
    leases: tuple[FleetLease, ...] = ()
    nodes: tuple[FleetNode, ...] = ()
    pools: tuple[FleetPool, ...] = ()
    agents: tuple[FleetAgent, ...] = ()
    endpoints: tuple[FleetEndpoint, ...] = ()

    @property
    def devices(self) -> int:
        return sum(node.devices for node in self.nodes)

    @property
    def leased(self) -> int:
        return sum(lease.devices for lease in self.leases)
