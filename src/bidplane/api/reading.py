"""
Our own kinds as structs: `read_agent`, `read_pool`, `read_bid`, `read_lease`.

Each returns a struct of metadata, spec and status, or `Invalid` with the problem: the API refuses
such an object, but one may come from an earlier version or from a cluster with other CRDs. A
struct is decoded once for each version of an object, and cached here, nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from bidplane.api.agent import AgentSpec, AgentStatus
from bidplane.api.bid import BidSpec, BidStatus
from bidplane.api.kinds import Object
from bidplane.api.lease import LeaseSpec, LeaseStatus
from bidplane.api.pool import PoolSpec, PoolStatus

_CACHED = 4096  # objects of each kind


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The metadata that Bidplane's parts use."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []


class OurObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of one of our kinds; subclasses add its spec and status."""

    metadata: ObjectMeta

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def is_deleted(self) -> bool:
        return bool(self.metadata.deletion_timestamp)


class Agent(OurObject, frozen=True, kw_only=True):
    spec: AgentSpec
    status: AgentStatus = AgentStatus()


class Pool(OurObject, frozen=True, kw_only=True):
    spec: PoolSpec
    status: PoolStatus = PoolStatus()


class Bid(OurObject, frozen=True, kw_only=True):
    spec: BidSpec
    status: BidStatus | None = None  # None until the exchange has seen it


class GPULease(OurObject, frozen=True, kw_only=True):
    spec: LeaseSpec
    status: LeaseStatus | None = None  # None until the exchange has written it


class Invalid(msgspec.Struct, frozen=True):
    """An object that its kind's struct cannot hold."""

    name: str
    problem: str  # names the field, as `spec.gpus`

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


T = TypeVar("T", bound=OurObject)


class ObjectReader(Generic[T]):
    """Reads objects of one kind, and keeps what it read for as long as the same object comes."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._cached: dict[int, tuple[Object, T | Invalid]] = {}  # by identity of the object

    def __call__(self, obj: Object) -> T | Invalid:
        cached = self._cached.get(id(obj))
        if cached is not None and cached[0] is obj:
            return cached[1]
        if len(self._cached) >= _CACHED:  # the oldest goes; dicts keep their order
            self._cached.pop(next(iter(self._cached)))
        struct = self._decode(obj)
        self._cached[id(obj)] = (obj, struct)
        return struct

    def _decode(self, obj: Object) -> T | Invalid:
        try:
            return msgspec.convert(obj, self._kind)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$")
            field = place.rstrip("`").lstrip(".")
            return Invalid(obj["metadata"]["name"], f"{field}: {problem}" if field else problem)


read_agent: Callable[[Object], Agent | Invalid] = ObjectReader(Agent)
read_pool: Callable[[Object], Pool | Invalid] = ObjectReader(Pool)
read_bid: Callable[[Object], Bid | Invalid] = ObjectReader(Bid)
read_lease: Callable[[Object], GPULease | Invalid] = ObjectReader(GPULease)
