"""
The allocator: the devices of one node for several claims.

This is the readable form, in upstream's order: claims, requests and devices one after the other,
with backtracking when the rest cannot be allocated. The first full answer is the result. `fast`
gives the same results sooner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec

from bidplane.core.devices.claims import capacity
from bidplane.core.devices.claims.constraints import ConstraintState
from bidplane.core.devices.claims.model import (
    MOST_DEVICES,
    AllocatedDevices,
    Claim,
    ClaimError,
    Device,
    DeviceId,
    DeviceRequest,
    PoolId,
    matches_node,
)
from bidplane.core.devices.claims.pools import SlicePool
from bidplane.core.devices.claims.selecting import DeviceMatcher

# A fraction of a second, enough for any claim people write. Upstream gives up after ten seconds.
MOST_STEPS = 20_000


class DeviceGrant(msgspec.Struct, frozen=True, eq=False):
    """One device for one request."""

    request: DeviceRequest
    device: Device
    consumed: Mapping[str, Fraction] | None = None  # of a device that is shared


class Allocated(msgspec.Struct, frozen=True, eq=False):
    """The devices for all claims, in the order of the claims."""

    claims: tuple[tuple[DeviceGrant, ...], ...]  # in the order they were asked for


class NotAllocated(msgspec.Struct, frozen=True):
    """The node does not have the devices for the claims. Another node may."""

    reason: str


class _TooMany(Exception):
    """The rest of the claim needs more devices than a claim may have."""


def allocate(
    claims: Sequence[Claim],
    *,
    node: str,
    labels: Mapping[str, str],
    pools: Sequence[SlicePool],
    matcher: DeviceMatcher,
    allocated: AllocatedDevices,
) -> Allocated | NotAllocated:
    """Allocate devices for all of the claims, or for none; raises `ClaimError`."""
    search = _Search(claims, node, labels, pools, matcher, allocated)
    search.prepare()
    try:
        is_complete = search.claim(0)
    except _TooMany:
        is_complete = False
    if is_complete:
        return Allocated(tuple(tuple(assigned) for assigned in search.assigned))
    invalid = [f"{pool.id}: {pool.invalid}" for pool in pools if pool.invalid]
    if invalid:
        return NotAllocated(f"invalid resource pools were encountered ({'; '.join(invalid)})")
    return NotAllocated("cannot allocate all claims")


class _Search:
    """The state of one backtracking search."""

    def __init__(
        self,
        claims: Sequence[Claim],
        node: str,
        labels: Mapping[str, str],
        pools: Sequence[SlicePool],
        matcher: DeviceMatcher,
        allocated: AllocatedDevices,
    ) -> None:
        self._claims, self._node, self._labels = claims, node, labels
        self._pools = {pool.id: pool for pool in pools}
        self._ordered = [device for pool in pools if pool.is_usable for device in pool.devices]
        self._matcher, self._allocated = matcher, allocated
        self._selected: dict[tuple[int, DeviceId], bool] = {}
        self._all: dict[int, list[Device]] = {}  # by request with allocationMode All
        self._constraints = [
            [ConstraintState(constraint) for constraint in claim.constraints] for claim in claims
        ]
        self._claims_of: dict[DeviceId, list[int]] = defaultdict(
            list
        )  # the claims that have the device
        self._shares: dict[DeviceId, int] = defaultdict(int)
        self._amounts: dict[DeviceId, dict[str, Fraction]] = defaultdict(dict)
        self._remaining: dict[PoolId, dict[str, dict[str, Fraction]]] = {}
        self._steps = 0
        self.assigned: list[list[DeviceGrant]] = [[] for _ in claims]

    # Before the search: checks whose result no search can change.

    def prepare(self) -> None:
        """Find the devices of each request for all devices, and refuse what no node can have."""
        for claim in self._claims:
            least = 0
            for choices in claim.requests:
                least += min(self._size(claim, request) for request in choices)
                if least > MOST_DEVICES:
                    raise ClaimError(
                        f"claim {claim.name}: asks for at least {least} devices;"
                        f" the most of one claim is {MOST_DEVICES}"
                    )

    def _size(self, claim: Claim, request: DeviceRequest) -> int:
        """Return how many devices a request needs."""
        self._matcher.of_class(claim.name, request)
        if not request.everything:
            return request.count
        matching: list[Device] = []
        for pool in self._pools.values():
            if not pool.is_usable:
                state = "being updated" if pool.incomplete else "invalid"
                raise ClaimError(
                    f"claim {claim.name}, request {request.full_name}: asks for all devices,"
                    f" but resource pool {pool.id} is currently {state}"
                )
            matching += (
                device
                for device in pool.devices
                if self._selects(claim, request, device) and capacity.fits(device, request.capacity)
            )
        self._all[id(request)] = matching
        return len(matching)

    def _selects(self, claim: Claim, request: DeviceRequest, device: Device) -> bool:
        """Return whether a request selects a device that this node reaches."""
        key = (id(request), device.id)
        selected = self._selected.get(key)
        if selected is None:
            selected = self._matcher.selects(claim.name, request, device) and (
                matches_node(device.scope, self._node, self._labels)
            )
            self._selected[key] = selected
        return selected

    # The search. Each step returns whether it and all later steps succeeded.

    def claim(self, index: int) -> bool:
        """Allocate the claims from `index` on."""
        return index == len(self._claims) or self._request(index, 0)

    def _request(self, claim: int, index: int) -> bool:
        """Allocate the requests of a claim from `index` on."""
        requests = self._claims[claim].requests
        if index == len(requests):
            try:
                return self.claim(claim + 1)
            except _TooMany:
                # A later claim has too many devices with these choices; others may do.
                return False
        only_too_many = True
        for request in requests[index]:
            try:
                if self._devices(claim, index, request, 0, 0):
                    return True
            except _TooMany:
                continue
            only_too_many = False
        if only_too_many:
            raise _TooMany
        return False

    def _devices(
        self, claim: int, index: int, request: DeviceRequest, assigned: int, start: int
    ) -> bool:
        """Allocate the rest of a request, of which `assigned` devices are assigned already."""
        matching = self._all.get(id(request))
        if matching is not None and not matching:
            return False  # allocationMode All needs at least one device
        count = request.count if matching is None else len(matching)
        if assigned == count:
            return self._request(claim, index + 1)
        if count - assigned > MOST_DEVICES - len(self.assigned[claim]):
            raise _TooMany
        if matching is not None:
            return self._try_device(
                claim, index, request, matching[assigned], assigned, 0, required=True
            )
        # Combinations, not permutations: the next device of a request comes after the last.
        for position in range(start, len(self._ordered)):
            device = self._ordered[position]
            if (
                not self._is_in_use(claim, request, device)
                and self._selects(self._claims[claim], request, device)
                and self._has_capacity(request, device)
                and self._try_device(claim, index, request, device, assigned, position + 1)
            ):
                return True
        return False

    def _try_device(
        self,
        claim: int,
        index: int,
        request: DeviceRequest,
        device: Device,
        assigned: int,
        start: int,
        *,
        required: bool = False,
    ) -> bool:
        """Assign a device and continue; undo the assignment if the rest fails."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise ClaimError(
                f"claim {self._claims[claim].name}: no answer after {MOST_STEPS} steps; ask for"
                " fewer devices at once, or select them more narrowly"
            )
        if not self._assign(claim, request, device, required):
            return False
        try:
            is_complete = self._devices(claim, index, request, assigned + 1, start)
        except _TooMany:
            self._unassign(claim)
            raise
        if not is_complete:
            self._unassign(claim)
        return is_complete

    # Assigning a device, and undoing it.

    def _is_in_use(self, claim: int, request: DeviceRequest, device: Device) -> bool:
        """
        Return whether the device is allocated already, as far as the request may not share it.
        """
        claims = self._claims_of.get(device.id, ())
        if request.admin:
            return claim in claims
        return device.id in self._allocated.devices or bool(claims)

    def _has_capacity(self, request: DeviceRequest, device: Device) -> bool:
        return capacity.fits(
            device,
            request.capacity,
            used=self._allocated.capacity.get(device.id, {}),
            pending=self._amounts.get(device.id, {}),
        )

    def _assign(self, claim: int, request: DeviceRequest, device: Device, required: bool) -> bool:
        """
        Assign a device if all rules allow it; raises `ClaimError` if a required one breaks a
        constraint.
        """
        if self._is_in_use(claim, request, device):
            return False
        charges_counters = self._charges_counters(device)
        if charges_counters and not self._has_counters(device):
            return False
        if not tolerates(request, device):
            return False
        constraints = self._constraints[claim]
        for index, constraint in enumerate(constraints):
            if not constraint.add(request, device):
                for earlier in constraints[:index]:
                    earlier.remove(request)
                if required:
                    raise ClaimError(
                        f"claim {self._claims[claim].name}, request {request.full_name}: cannot"
                        f" add device {device.id} because a claim constraint would not be satisfied"
                    )
                return False
        if not self._has_capacity(request, device):
            for constraint in constraints:
                constraint.remove(request)
            return False
        consumed = None
        if device.multiple:
            consumed = capacity.consumed(device, request.capacity) or {}
            amounts = self._amounts[device.id]
            for name, amount in consumed.items():
                amounts[name] = amounts.get(name, Fraction(0)) + amount
            self._shares[device.id] += 1
        else:
            self._claims_of[device.id].append(claim)
        if charges_counters:
            self._charge(device, 1)
        self.assigned[claim].append(DeviceGrant(request, device, consumed))
        return True

    def _unassign(self, claim: int) -> None:
        """Undo the last assignment of a claim."""
        last = self.assigned[claim].pop()
        device = last.device
        if last.consumed is not None:
            amounts = self._amounts[device.id]
            for name, amount in last.consumed.items():
                amounts[name] -= amount
            self._shares[device.id] -= 1
        else:
            self._claims_of[device.id].remove(claim)
        if self._charges_counters(device):
            self._charge(device, -1)
        for constraint in self._constraints[claim]:
            constraint.remove(last.request)

    # Counters that devices of a pool share.

    def _charges_counters(self, device: Device) -> bool:
        """Return whether the device uses its counters: a shared device does so only once."""
        if not device.counters:
            return False
        shared = device.id in self._allocated.shared or self._shares[device.id] > 0
        return not (device.multiple and shared)

    def _has_counters(self, device: Device) -> bool:
        """Return whether the pool's shared counters suffice for the device."""
        remaining = self._counters(device.pool)
        # An overdrawn counter blocks every device of the pool, as upstream does.
        if any(count < 0 for counts in remaining.values() for count in counts.values()):
            return False
        needed: dict[tuple[str, str], Fraction] = {}
        for set_, counts in device.counters:
            for name, count in counts.items():
                needed[set_, name] = needed.get((set_, name), Fraction(0)) + count
        return all(remaining[set_][name] >= count for (set_, name), count in needed.items())

    def _charge(self, device: Device, sign: int) -> None:
        """Subtract the device's counters from the pool's, or add them back."""
        remaining = self._counters(device.pool)
        for set_, counts in device.counters:
            for name, count in counts.items():
                remaining[set_][name] -= sign * count

    def _counters(self, pool_id: PoolId) -> dict[str, dict[str, Fraction]]:
        """Return the remaining shared counters of a pool."""
        remaining = self._remaining.get(pool_id)
        if remaining is None:
            pool = self._pools[pool_id]
            remaining = {name: dict(counts) for name, counts in pool.counters.items()}
            for device in (*pool.devices, *pool.elsewhere):
                if self._allocated.holds(device.id):
                    for set_, counts in device.counters:
                        for name, count in counts.items():
                            remaining[set_][name] -= count
            self._remaining[pool_id] = remaining
        return remaining


def tolerates(request: DeviceRequest, device: Device) -> bool:
    """Return whether a request tolerates all taints of a device that keep requests off."""
    return all(
        any(_matches_taint(toleration, taint) for toleration in request.tolerations)
        for taint in device.taints
        # Other effects only inform.
        if taint.get("effect") in ("NoSchedule", "NoExecute")
    )


def _matches_taint(toleration: Mapping[str, object], taint: Mapping[str, object]) -> bool:
    for field in ("effect", "key"):
        if toleration.get(field) and toleration[field] != taint.get(field):
            return False
    match toleration.get("operator") or "Equal":
        case "Equal":
            return (toleration.get("value") or "") == (taint.get("value") or "")
        case "Exists":
            return True
    return False
