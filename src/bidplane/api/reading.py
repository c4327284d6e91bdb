"""
Our own kinds as structs: `read_agent`, `read_pool`, `read_bid`, `read_lease`, `read_policy`,
`read_proposal`, `read_endpoint`.

Each returns a struct of metadata, spec and status, or `Invalid` with the problem: the API refuses
such an object, but one may come from an earlier version or from a cluster with other CRDs. A
struct is decoded once for each version of an object, and has the JSON it was read from, for whoever
copies or sends it. Caches of objects are here and nowhere else: `IdentityCache` keeps the values of
the last objects, `ViewCache` those of a whole listing.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from bidplane.api.agent import AgentSpec, AgentStatus
from bidplane.api.bid import BidPhase, BidSpec, BidStatus
from bidplane.api.endpoint import EndpointSpec, EndpointStatus
from bidplane.api.gate.policy import PolicySpec, PolicyStatus
from bidplane.api.gate.proposal import ProposalPhase, ProposalSpec, ProposalStatus
from bidplane.api.kinds import Object
from bidplane.api.lease import LeaseSpec, LeaseStatus, Origin, Phase
from bidplane.api.objects import status_of
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


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One of an object's conditions, each written by the part that observes it."""

    type: str
    status: str  # True | False | Unknown
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class OurObject(msgspec.Struct, frozen=True, kw_only=True):
    """
    An object of one of our kinds; subclasses add its spec and status.

    Conditions are part of every kind's status in the API. They are a field of their own here: a
    status has one writer, and a struct of what it writes must not overwrite others' conditions.
    """

    metadata: ObjectMeta
    conditions: tuple[Condition, ...] = ()
    json: Mapping[str, Any] = {}  # the object as the API served it

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
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations

    @property
    def creation_timestamp(self) -> str:
        """When it was created (RFC 3339); "" before the API has it."""
        return self.metadata.creation_timestamp

    @property
    def is_deleted(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

    def condition(self, type_: str) -> Condition | None:
        """Return the condition of a type; None without one."""
        return next((c for c in self.conditions if c.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Return True if the object has the condition with status True."""
        condition = self.condition(type_)
        return condition is not None and condition.status == "True"


class Agent(OurObject, frozen=True, kw_only=True):
    spec: AgentSpec
    status: AgentStatus = AgentStatus()


class Pool(OurObject, frozen=True, kw_only=True):
    spec: PoolSpec
    status: PoolStatus = PoolStatus()


class Bid(OurObject, frozen=True, kw_only=True):
    spec: BidSpec
    status: BidStatus | None = None  # None until the exchange has seen it

    @property
    def phase(self) -> BidPhase | None:
        return self.status.phase if self.status is not None else None

    @property
    def is_waiting(self) -> bool:
        """True until it has won or was refused."""
        return self.phase in (None, BidPhase.WAITING)


class GPULease(OurObject, frozen=True, kw_only=True):
    spec: LeaseSpec
    status: LeaseStatus | None = None  # None until the exchange has written it

    @property
    def phase(self) -> Phase | None:
        return self.status.phase if self.status is not None else None

    @property
    def is_ready(self) -> bool:
        """True unless the last holder of its devices still has to leave."""
        return self.status is None or self.status.ready

    @property
    def is_held(self) -> bool:
        """True while it is pending or active, and not being deleted."""
        return self.phase in (Phase.PENDING, Phase.ACTIVE) and not self.is_deleted

    @property
    def was_ordered(self) -> bool:
        """True if it was bought over HTTP, without a Bid."""
        return self.spec.origin is Origin.ORDER

    @property
    def share(self) -> str:
        """The part of a GPU that each of its devices is; "" for whole GPUs."""
        return self.spec.devices[0].share if self.spec.devices else ""

    def shows(self, lease: str) -> bool:
        """
        Return True if this object shows the lease of that name, as a Bid's status gives it; a gang
        has one object for each block, which is numbered.
        """
        return self.name in (lease, f"{lease}-{self.spec.part}")


class Policy(OurObject, frozen=True, kw_only=True):
    spec: PolicySpec
    status: PolicyStatus = PolicyStatus()


class Proposal(OurObject, frozen=True, kw_only=True):
    spec: ProposalSpec
    status: ProposalStatus | None = None  # None until it was judged

    @property
    def phase(self) -> ProposalPhase | None:
        return self.status.phase if self.status is not None else None


class Endpoint(OurObject, frozen=True, kw_only=True):
    spec: EndpointSpec
    status: EndpointStatus | None = None  # None until a controller has seen it


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
        # Holds the object: its id stays its own. A plain dict finds its oldest entry slowly.
        self._values: OrderedDict[int, tuple[Object, V]] = OrderedDict()

    def __call__(self, obj: Object) -> V:
        cached = self._values.get(id(obj))
        if cached is not None:
            return cached[1]
        value = self._derive(obj)
        if len(self._values) >= self._most:
            self._values.popitem(last=False)
        self._values[id(obj)] = (obj, value)
        return value


class ViewCache(Generic[V]):
    """
    Values computed from the objects of a listing, each kept for as long as the very same object
    comes again. Unlike `IdentityCache` it has no bound: it is as large as the listing.
    """

    def __init__(self, compute: Callable[[Object], V]) -> None:
        self._compute = compute
        self._objects: list[Object] = []
        self._values: list[V] = []

    def of(self, objects: Iterable[Object]) -> Sequence[V]:
        """Return the value of each object, in order; only those of new objects are computed."""
        objects, before = list(objects), self._objects
        if len(objects) != len(before) or not all(map(operator.is_, objects, before)):
            # By identity: this cache holds the objects, so that their ids stay their own.
            computed = dict(zip(map(id, before), self._values, strict=True))
            self._values = [
                computed[id(obj)] if id(obj) in computed else self._compute(obj) for obj in objects
            ]
            self._objects = objects
        return self._values


T = TypeVar("T", bound=OurObject)


def _reader(
    kind: type[T], upgrade: Callable[[Object], Object] | None = None
) -> Callable[[Object], T | Invalid]:
    """
    Return the function that reads objects of a kind; `upgrade` completes those of earlier versions.
    """

    def decode(obj: Object) -> T | Invalid:
        source = upgrade(obj) if upgrade is not None else obj
        try:
            conditions = status_of(obj).get("conditions") or ()
            struct = _convert({**source, "conditions": conditions}, kind)
            msgspec.structs.force_setattr(struct, "json", obj)
            return struct
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$")
            field = place.rstrip("`").lstrip(".")
            return Invalid(obj["metadata"]["name"], f"{field}: {problem}" if field else problem)

    return IdentityCache(decode)


def _convert(fields: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        if "`$.status" not in str(error):
            raise
    # The status is of another version, or nothing but conditions. It counts as not written: the
    # part that writes it writes it again.
    del fields["status"]
    return msgspec.convert(fields, kind)


def _with_origin(lease: Object) -> Object:
    """Return a lease with its origin, which 0.1.0 did not store: no user can choose such a uid."""
    spec = lease.get("spec") or {}
    uid = str((spec.get("bid") or {}).get("uid", ""))
    if "origin" in spec or not uid.startswith("order/"):
        return lease
    return {**lease, "spec": {**spec, "origin": Origin.ORDER.value}}


S = TypeVar("S", bound=msgspec.Struct)


def read_status(obj: Object, kind: type[S]) -> S | None:
    """Return the status alone, also of an object that is invalid otherwise; None without one."""
    try:
        return msgspec.convert(status_of(obj), kind)
    except msgspec.ValidationError:
        return None


read_agent = _reader(Agent)
read_pool = _reader(Pool)
read_bid = _reader(Bid)
read_lease = _reader(GPULease, _with_origin)
read_policy = _reader(Policy)
read_proposal = _reader(Proposal)
read_endpoint = _reader(Endpoint)
