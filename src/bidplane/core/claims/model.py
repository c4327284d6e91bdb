"""What the allocator works on, read from objects of any served version."""

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
    """A claim that can be allocated on no node as it is written; says where and why."""


class DeviceId(NamedTuple):
    driver: str
    pool: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)


class PoolId(NamedTuple):
    driver: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)


class Where(msgspec.Struct, frozen=True):
    """Which nodes can reach something."""

    node: str = ""
    everywhere: bool = False
    selector: Object | None = None

    @property
    def is_said(self) -> bool:
        return bool(self.node or self.everywhere or self.selector)


class Device(msgspec.Struct, frozen=True, eq=False):
    id: DeviceId
    raw: Object  # as its slice has it
    multiple: bool  # may be allocated to several claims
    counters: tuple[tuple[str, Mapping[str, Fraction]], ...]  # taken from sets of the pool
    where: Where

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
        """Its attributes and capacities as CEL sees them; raises `CelError`."""
        driver = self.id.driver
        try:
            attributes = values_of(self.raw.get("attributes") or {}, driver, attribute_value)
        except ValueError as error:
            raise CelError(str(error)) from None
        return attributes, values_of(self.capacity, driver, capacity_value)

    def attribute(self, qualified: str) -> Object | None:
        """By its full name; one of the driver's own may be published without the domain."""
        attributes = self.raw.get("attributes") or {}
        found: Object | None = attributes.get(qualified)
        if found is None:
            domain, _, name = qualified.partition("/")
            if domain == self.id.driver:
                found = attributes.get(name)
        return found


class Slice(msgspec.Struct, frozen=True, eq=False):
    name: str
    pool: PoolId
    generation: int
    slices_in_pool: int
    where: Where
    each_its_own: bool  # the devices say themselves where they are
    devices: tuple[Device, ...]
    counter_sets: tuple[tuple[str, Mapping[str, Fraction]], ...]


class Request(msgspec.Struct, frozen=True, eq=False):
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
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def base_name(self) -> str:
        return self.parent or self.name


class Constraint(msgspec.Struct, frozen=True, eq=False):
    requests: frozenset[str]  # empty: all
    match: str  # an attribute's full name, or ""
    distinct: str

    def concerns(self, request: Request) -> bool:
        return (
            not self.requests
            or request.base_name in self.requests
            or (bool(request.parent) and request.full_name in self.requests)
        )


class Claim(msgspec.Struct, frozen=True, eq=False):
    name: str  # namespace/name, for messages
    uid: str
    requests: tuple[tuple[Request, ...], ...]  # each with its choices, the best first
    is_list: tuple[bool, ...]  # which of them is a firstAvailable
    constraints: tuple[Constraint, ...]
    config: tuple[Object, ...]


class Taken(msgspec.Struct):
    """What others already have of the devices."""

    devices: set[DeviceId] = msgspec.field(default_factory=set)
    shared: dict[DeviceId, int] = msgspec.field(default_factory=dict)  # claims' shares
    capacity: dict[DeviceId, dict[str, Fraction]] = msgspec.field(default_factory=dict)

    def add(self, allocation: Object) -> None:
        for one in results(allocation):
            device = _device_of(one)
            if not one.get("shareID"):
                self.devices.add(device)
                continue
            self.shared[device] = self.shared.get(device, 0) + 1
            used = self.capacity.setdefault(device, {})
            for name, amount in (one.get("consumedCapacity") or {}).items():
                used[name] = used.get(name, Fraction(0)) + parse(amount)

    def remove(self, allocation: Object) -> None:
        for one in results(allocation):
            device = _device_of(one)
            if not one.get("shareID"):
                self.devices.discard(device)
                continue
            self.shared[device] -= 1
            used = self.capacity[device]
            for name, amount in (one.get("consumedCapacity") or {}).items():
                used[name] -= parse(amount)
            if not self.shared[device]:
                del self.shared[device], self.capacity[device]

    def holds(self, device: DeviceId) -> bool:
        return device in self.devices or device in self.shared


def results(allocation: Object) -> Iterator[Object]:
    """What an allocation takes; admin access takes nothing."""
    for one in (allocation.get("devices") or {}).get("results") or ():
        if not one.get("adminAccess"):
            yield one


def _device_of(result: Object) -> DeviceId:
    return DeviceId(result["driver"], result["pool"], result["device"])


def taken_by(claims: Iterable[Object]) -> Taken:
    """What the allocated among `claims` have."""
    taken = Taken()
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation:
            taken.add(allocation)
    return taken


def read_slices(slices: Iterable[Object]) -> list[Slice]:
    return [_read_slice(_current(one, "ResourceSlice")) for one in slices]


def _current(obj: Object, kind: str) -> Object:
    """As v1 has it: v1beta1 says some things at other places, v1beta2 does not."""
    if obj.get("apiVersion") == "resource.k8s.io/v1beta1":
        return from_beta({**obj, "kind": kind})
    return obj


def _read_slice(obj: Object) -> Slice:
    spec = obj["spec"]
    pool = PoolId(spec["driver"], spec["pool"]["name"])
    each_its_own = bool(spec.get("perDeviceNodeSelection"))
    whole = _where(spec)
    return Slice(
        name=obj["metadata"].get("name", ""),
        pool=pool,
        generation=spec["pool"].get("generation", 0),
        slices_in_pool=spec["pool"].get("resourceSliceCount", 1),
        where=whole,
        each_its_own=each_its_own,
        devices=tuple(
            Device(
                id=DeviceId(pool.driver, pool.name, one["name"]),
                raw=one,
                multiple=bool(one.get("allowMultipleAllocations")),
                counters=_counters(one.get("consumesCounters"), "counterSet"),
                where=_where(one) if each_its_own else whole,
            )
            for one in spec.get("devices") or ()
        ),
        counter_sets=_counters(spec.get("sharedCounters"), "name"),
    )


def _where(spec: Object) -> Where:
    return Where(
        spec.get("nodeName") or "", bool(spec.get("allNodes")), spec.get("nodeSelector") or None
    )


def _counters(sets: Any, key: str) -> tuple[tuple[str, Mapping[str, Fraction]], ...]:
    return tuple(
        (one[key], {name: parse(c["value"]) for name, c in one["counters"].items()})
        for one in sets or ()
    )


def read_claim(obj: Object) -> Claim:
    """A claim, ready to be allocated; raises `ClaimError`."""
    obj = _current(obj, "ResourceClaim")
    metadata = obj["metadata"]
    name = f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    devices = obj["spec"].get("devices") or {}
    requests, is_list = [], []
    for one in devices.get("requests") or ():
        choices = one.get("firstAvailable") or ()
        if len(choices) > MOST_CHOICES:
            raise ClaimError(
                f"claim {name}, request {one['name']}: firstAvailable has {len(choices)} choices;"
                f" the most is {MOST_CHOICES}"
            )
        if not choices and not one.get("exactly"):
            raise ClaimError(
                f"claim {name}, request {one['name']}: says neither exactly nor firstAvailable"
            )
        is_list.append(bool(choices))
        requests.append(
            tuple(_request(name, choice, one["name"]) for choice in choices)
            or (_request(name, {**one["exactly"], "name": one["name"]}, ""),)
        )
    return Claim(
        name=name,
        uid=metadata.get("uid", name),
        requests=tuple(requests),
        is_list=tuple(is_list),
        constraints=tuple(_constraints(name, devices.get("constraints"))),
        config=tuple(devices.get("config") or ()),
    )


def _request(claim: str, obj: Object, parent: str) -> Request:
    where = f"claim {claim}, request {obj.get('name', '')}"
    mode = obj.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise ClaimError(f"{where}: unsupported count mode {mode}")
    if not obj.get("deviceClassName"):
        raise ClaimError(f"{where}: missing device class name")
    selectors = []
    for at, selector in enumerate(obj.get("selectors") or ()):
        expression = (selector.get("cel") or {}).get("expression")
        if not expression:
            raise ClaimError(f"{where}, selector #{at}: CEL expression empty")
        selectors.append(expression)
    asked = (obj.get("capacity") or {}).get("requests") or {}
    return Request(
        name=obj["name"],
        parent=parent,
        device_class=obj["deviceClassName"],
        everything=mode == "All",
        count=obj.get("count") or 1,
        selectors=tuple(selectors),
        tolerations=tuple(obj.get("tolerations") or ()),
        admin=bool(obj.get("adminAccess")),
        capacity={key: parse(value) for key, value in asked.items()},
    )


def _constraints(claim: str, constraints: Any) -> Iterator[Constraint]:
    for at, one in enumerate(constraints or ()):
        match, distinct = one.get("matchAttribute") or "", one.get("distinctAttribute") or ""
        if not (match or distinct):
            raise ClaimError(f"claim {claim}, constraint #{at}: empty constraint")
        # With both, upstream looks at the first.
        yield Constraint(frozenset(one.get("requests") or ()), match, "" if match else distinct)


def class_selectors(device_class: Object) -> tuple[str, ...]:
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    return tuple(one["cel"]["expression"] for one in selectors)


def value_key(attribute: Object) -> tuple[str, Any] | None:
    """What two attributes are compared by; None for a list, which equals nothing."""
    for kind in ("string", "int", "bool", "version"):
        if attribute.get(kind) is not None:
            return kind, attribute[kind]
    return None


def matches_node(where: Where, name: str, labels: Mapping[str, str]) -> bool:
    if where.node:
        return where.node == name
    if where.everywhere:
        return True
    if where.selector is None:
        return False
    return any(_term(term, name, labels) for term in where.selector.get("nodeSelectorTerms") or ())


def _term(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term is no node's
    return all(_requirement(one, labels) for one in expressions) and all(
        _requirement(one, {"metadata.name": name}) for one in fields
    )


def _requirement(one: Object, labels: Mapping[str, str]) -> bool:
    value = labels.get(one["key"])
    wanted = one.get("values") or ()
    match one["operator"]:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as sign:
            number, limit = _whole(value), _whole(wanted[0] if wanted else None)
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
