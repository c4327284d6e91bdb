"""The allocator's data types, read from objects of any served version."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from bidplane.api.kinds import Object
from bidplane.core.cel import CelError
from bidplane.core.cel.devices import Values, attribute_value, capacity_value, values_of
from bidplane.wire.kinds.devices import from_beta
from bidplane.wire.quantity import parse

MOST_DEVICES = 32  # of one claim: AllocationResultsMaxSize
MOST_CHOICES = 8  # of one firstAvailable


class ClaimError(Exception):
    """A claim that cannot be allocated on any node as written. The message says where and why."""


class DeviceId(NamedTuple):
    """The identity of a device."""

    driver: str
    pool: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)


class PoolId(NamedTuple):
    """The identity of a driver's pool of devices."""

    driver: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)


class NodeScope(msgspec.Struct, frozen=True):
    """The nodes that can reach a slice or a device."""

    node: str = ""
    everywhere: bool = False
    selector: Object | None = None

    @property
    def is_given(self) -> bool:
        """True if the nodes are given at all."""
        return bool(self.node or self.everywhere or self.selector)


class Device(msgspec.Struct, frozen=True, eq=False):
    """A device of a ResourceSlice."""

    id: DeviceId
    raw: Object  # as its slice has it
    multiple: bool  # may be allocated to several claims
    counters: tuple[tuple[str, Mapping[str, Fraction]], ...]  # taken from sets of the pool
    scope: NodeScope

    @property
    def pool(self) -> PoolId:
        return PoolId(self.id.driver, self.id.pool)

    @property
    def taints(self) -> tuple[Object, ...]:
        return tuple(self.raw.get("taints") or ())

    @property
    def capacity(self) -> Mapping[str, Object]:
        return self.raw.get("capacity") or {}

    def values(self) -> tuple[Values, Values]:
        """Return its attributes and capacities as CEL sees them; raises `CelError`."""
        driver = self.id.driver
        try:
            attributes = values_of(self.raw.get("attributes") or {}, driver, attribute_value)
        except ValueError as error:
            raise CelError(str(error)) from None
        return attributes, values_of(self.capacity, driver, capacity_value)

    def attribute(self, qualified: str) -> Object | None:
        """
        Return an attribute by its full name; a driver's own may be published without the domain.
        """
        return named(self.raw.get("attributes") or {}, qualified, self.id.driver)


class DeviceSlice(msgspec.Struct, frozen=True, eq=False):
    """A ResourceSlice."""

    name: str
    pool: PoolId
    generation: int
    slices_in_pool: int
    scope: NodeScope
    per_device_nodes: bool  # each device gives its own nodes
    devices: tuple[Device, ...]
    counter_sets: tuple[tuple[str, Mapping[str, Fraction]], ...]


class DeviceRequest(msgspec.Struct, frozen=True, eq=False):
    """A request, or one choice of a `firstAvailable`."""

    name: str
    parent: str  # "" unless it is a choice
    device_class: str
    everything: bool  # allocationMode: All
    count: int
    selectors: tuple[str, ...]
    tolerations: tuple[Object, ...]
    admin: bool
    capacity: Mapping[str, Fraction]

    @property
    def full_name(self) -> str:
        """The name that allocations and constraints use: `request/choice` for a choice."""
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def base_name(self) -> str:
        """The name of the request, also for one of its choices."""
        return self.parent or self.name


class Constraint(msgspec.Struct, frozen=True, eq=False):
    """A constraint that the devices of some requests are equal, or distinct, in an attribute."""

    requests: frozenset[str]  # empty: all
    match: str  # an attribute's full name, or ""
    distinct: str

    def concerns(self, request: DeviceRequest) -> bool:
        """Return whether the constraint applies to a request."""
        return (
            not self.requests
            or request.base_name in self.requests
            or (bool(request.parent) and request.full_name in self.requests)
        )


class Claim(msgspec.Struct, frozen=True, eq=False):
    """A ResourceClaim to allocate."""

    name: str  # namespace/name, for messages
    uid: str
    requests: tuple[tuple[DeviceRequest, ...], ...]  # each with its choices, the best first
    is_list: tuple[bool, ...]  # which of them is a firstAvailable
    constraints: tuple[Constraint, ...]
    config: tuple[Object, ...]

    def alike_in(self, request: DeviceRequest) -> list[str]:
        """Return the attributes in which all devices of a request must be equal."""
        return [
            constraint.match
            for constraint in self.constraints
            if constraint.match and constraint.concerns(request)
        ]


class AllocatedDevices(msgspec.Struct):
    """The devices, and the capacities of shared devices, that are already allocated."""

    devices: set[DeviceId] = msgspec.field(default_factory=set)
    shared: dict[DeviceId, int] = msgspec.field(default_factory=dict)  # claims' shares
    capacity: dict[DeviceId, dict[str, Fraction]] = msgspec.field(default_factory=dict)

    def add(self, allocation: Object) -> None:
        """Add the devices of an allocation."""
        for result in results(allocation):
            device = _device_of(result)
            if not result.get("shareID"):
                self.devices.add(device)
                continue
            self.shared[device] = self.shared.get(device, 0) + 1
            used = self.capacity.setdefault(device, {})
            for name, amount in (result.get("consumedCapacity") or {}).items():
                used[name] = used.get(name, Fraction(0)) + parse(amount)

    def remove(self, allocation: Object) -> None:
        """Remove the devices of an allocation."""
        for result in results(allocation):
            device = _device_of(result)
            if not result.get("shareID"):
                self.devices.discard(device)
                continue
            self.shared[device] -= 1
            used = self.capacity[device]
            for name, amount in (result.get("consumedCapacity") or {}).items():
                used[name] -= parse(amount)
            if not self.shared[device]:
                del self.shared[device], self.capacity[device]

    def holds(self, device: DeviceId) -> bool:
        """Return whether any of the device is allocated."""
        return device in self.devices or device in self.shared


def results(allocation: Object) -> Iterator[Object]:
    """Yield the allocated devices of an allocation, without those of admin access."""
    for result in (allocation.get("devices") or {}).get("results") or ():
        if not result.get("adminAccess"):
            yield result


def _device_of(result: Object) -> DeviceId:
    return DeviceId(result["driver"], result["pool"], result["device"])


def allocated_by(claims: Iterable[Object]) -> AllocatedDevices:
    """Return the devices that the allocated ones among `claims` have."""
    allocated = AllocatedDevices()
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation:
            allocated.add(allocation)
    return allocated


def read_slices(slices: Iterable[Object]) -> list[DeviceSlice]:
    """Read ResourceSlices of any served version."""
    return [_read_slice(_current(slice_, "ResourceSlice")) for slice_ in slices]


def _current(obj: Object, kind: str) -> Object:
    """Return an object in v1's form: v1beta1 has some fields elsewhere, v1beta2 does not."""
    if obj.get("apiVersion") == "resource.k8s.io/v1beta1":
        return from_beta({**obj, "kind": kind})
    return obj


def _read_slice(obj: Object) -> DeviceSlice:
    spec = obj["spec"]
    pool = PoolId(spec["driver"], spec["pool"]["name"])
    per_device_nodes = bool(spec.get("perDeviceNodeSelection"))
    slice_scope = _node_scope(spec)
    return DeviceSlice(
        name=obj["metadata"].get("name", ""),
        pool=pool,
        generation=spec["pool"].get("generation", 0),
        slices_in_pool=spec["pool"].get("resourceSliceCount", 1),
        scope=slice_scope,
        per_device_nodes=per_device_nodes,
        devices=tuple(
            Device(
                id=DeviceId(pool.driver, pool.name, device["name"]),
                raw=device,
                multiple=bool(device.get("allowMultipleAllocations")),
                counters=_counters(device.get("consumesCounters"), "counterSet"),
                scope=_node_scope(device) if per_device_nodes else slice_scope,
            )
            for device in spec.get("devices") or ()
        ),
        counter_sets=_counters(spec.get("sharedCounters"), "name"),
    )


def _node_scope(spec: Object) -> NodeScope:
    return NodeScope(
        spec.get("nodeName") or "", bool(spec.get("allNodes")), spec.get("nodeSelector") or None
    )


def _counters(sets: Any, key: str) -> tuple[tuple[str, Mapping[str, Fraction]], ...]:
    return tuple(
        (
            counter_set[key],
            {name: parse(counter["value"]) for name, counter in counter_set["counters"].items()},
        )
        for counter_set in sets or ()
    )


def read_claim(obj: Object) -> Claim:
    """Read a claim for allocation; raises `ClaimError`."""
    obj = _current(obj, "ResourceClaim")
    metadata = obj["metadata"]
    name = f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    devices = obj["spec"].get("devices") or {}
    requests, is_list = [], []
    for request in devices.get("requests") or ():
        choices = request.get("firstAvailable") or ()
        if len(choices) > MOST_CHOICES:
            raise ClaimError(
                f"claim {name}, request {request['name']}: firstAvailable has {len(choices)}"
                f" choices; the most is {MOST_CHOICES}"
            )
        if not choices and not request.get("exactly"):
            raise ClaimError(
                f"claim {name}, request {request['name']}: says neither exactly nor firstAvailable"
            )
        is_list.append(bool(choices))
        requests.append(
            tuple(_request(name, choice, request["name"]) for choice in choices)
            or (_request(name, {**request["exactly"], "name": request["name"]}, ""),)
        )
    return Claim(
        name=name,
        uid=metadata.get("uid", name),
        requests=tuple(requests),
        is_list=tuple(is_list),
        constraints=tuple(_constraints(name, devices.get("constraints"))),
        config=tuple(devices.get("config") or ()),
    )


def _request(claim: str, obj: Object, parent: str) -> DeviceRequest:
    field = f"claim {claim}, request {obj.get('name', '')}"
    mode = obj.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise ClaimError(f"{field}: unsupported count mode {mode}")
    if not obj.get("deviceClassName"):
        raise ClaimError(f"{field}: missing device class name")
    selectors = []
    for index, selector in enumerate(obj.get("selectors") or ()):
        expression = (selector.get("cel") or {}).get("expression")
        if not expression:
            raise ClaimError(f"{field}, selector #{index}: CEL expression empty")
        selectors.append(expression)
    amounts = (obj.get("capacity") or {}).get("requests") or {}
    return DeviceRequest(
        name=obj["name"],
        parent=parent,
        device_class=obj["deviceClassName"],
        everything=mode == "All",
        count=obj.get("count") or 1,
        selectors=tuple(selectors),
        tolerations=tuple(obj.get("tolerations") or ()),
        admin=bool(obj.get("adminAccess")),
        capacity={key: parse(value) for key, value in amounts.items()},
    )


def _constraints(claim: str, constraints: Any) -> Iterator[Constraint]:
    for index, constraint in enumerate(constraints or ()):
        match, distinct = (
            constraint.get("matchAttribute") or "",
            constraint.get("distinctAttribute") or "",
        )
        if not (match or distinct):
            raise ClaimError(f"claim {claim}, constraint #{index}: empty constraint")
        # With both fields, upstream uses the first.
        yield Constraint(
            frozenset(constraint.get("requests") or ()), match, "" if match else distinct
        )


def class_selectors(device_class: Object) -> tuple[str, ...]:
    """Return the CEL expressions of a DeviceClass."""
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    return tuple(selector["cel"]["expression"] for selector in selectors)


def named(attributes: Mapping[str, Object], qualified: str, driver: str) -> Object | None:
    """Return an attribute by its full name, or by its short name if it is the driver's own."""
    attribute = attributes.get(qualified)
    domain, _, name = qualified.partition("/")
    return attributes.get(name) if attribute is None and domain == driver else attribute


def value_key(attribute: Object) -> tuple[str, Any] | None:
    """
    Return the value by which two attributes are compared; None for a list, which equals nothing.
    """
    for kind in ("string", "int", "bool", "version"):
        if attribute.get(kind) is not None:
            return kind, attribute[kind]
    return None


def matches_node(scope: NodeScope, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node can reach what `scope` describes."""
    if scope.node:
        return scope.node == name
    if scope.everywhere:
        return True
    if scope.selector is None:
        return False
    return matches_terms(scope.selector.get("nodeSelectorTerms") or (), name, labels)


def matches_terms(terms: Iterable[Object], name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node matches one of these node selector terms."""
    return any(_matches_term(term, name, labels) for term in terms)


def _matches_term(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node matches all requirements of a node selector term."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term matches no node
    return all(_satisfies(requirement, labels) for requirement in expressions) and all(
        _satisfies(requirement, {"metadata.name": name}) for requirement in fields
    )


def _satisfies(requirement: Object, labels: Mapping[str, str]) -> bool:
    """Return whether labels satisfy one requirement of a term."""
    value = labels.get(requirement["key"])
    allowed = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value is not None and value in allowed
        case "NotIn":
            return value is None or value not in allowed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as sign:
            number, limit = _whole(value), _whole(allowed[0] if allowed else None)
            if number is None or limit is None:
                return False
            return number > limit if sign == "Gt" else number < limit
    return False


@functools.lru_cache(maxsize=1024)
def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
