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


V = TypeVar("V")


class IdentityCache(Generic[V]):
    """
    The values derived from the last few thousand objects, by identity: an object that a client or
    a cache returned is never modified, so that the same object always gives the same value.
    """

    def __init__(self, derive: Callable[[Object], V], most: int = _CACHED) -> None:
        self._derive = derive
        self._most = most
        self._values: dict[int, tuple[Object, V]] = {}  # holds the object: its id stays its own

    def __call__(self, obj: Object) -> V:
        cached = self._values.get(id(obj))
        if cached is not None:
            return cached[1]
        value = self._derive(obj)
        if len(self._values) >= self._most:  # the oldest goes; dicts keep their order
            self._values.pop(next(iter(self._values)))
        self._values[id(obj)] = (obj, value)
        return value


T = TypeVar("T", bound=OurObject)


def _reader(kind: type[T]) -> Callable[[Object], T | Invalid]:
    """Return the function that reads objects of a kind."""

    def decode(obj: Object) -> T | Invalid:
        try:
            return msgspec.convert(obj, kind)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$")
            field = place.rstrip("`").lstrip(".")
            return Invalid(obj["metadata"]["name"], f"{field}: {problem}" if field else problem)

    return IdentityCache(decode)


read_agent = _reader(Agent)
read_pool = _reader(Pool)
read_bid = _reader(Bid)
read_lease = _reader(GPULease)
