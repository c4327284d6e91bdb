"""
The allocator for a whole fleet: quick for plain claims, and always with the result of `search`.

A plain claim has one request for a number of devices, and at most one attribute in which they must
be equal. On a node whose devices are neither cut nor shared, the first answer of the search is then
known without searching: of the selected devices, in order, the first that are free; or those of the
first group that is large enough. The selection is evaluated once per node.

A node without room stays without room until a device is released. So each kind of claim is tried
from the first node that may still have room.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.kinds import Object
from bidplane.core.devices.claims import capacity, search
from bidplane.core.devices.claims.model import (
    MOST_DEVICES,
    AllocatedDevices,
    Claim,
    ClaimError,
    Device,
    DeviceId,
    DeviceRequest,
    DeviceSlice,
    matches_node,
    value_key,
)
from bidplane.core.devices.claims.pools import SlicePool, Slices
from bidplane.core.devices.claims.result import allocation
from bidplane.core.devices.claims.search import Allocated, DeviceGrant, NotAllocated
from bidplane.core.devices.claims.selecting import DeviceMatcher

Labels = Mapping[str, str]


class Placed(msgspec.Struct, frozen=True, eq=False):
    """The node and the allocations of claims."""

    node: str
    allocations: tuple[dict[str, Any], ...]  # one for each claim


class _Node(msgspec.Struct, eq=False):
    """A node with its pools, and the devices that kinds of requests select there."""

    name: str
    labels: Labels
    pools: list[SlicePool]
    is_plain: bool  # no counters, no shares
    selected: dict[Hashable, list[Device] | None] = {}  # None: needs a search


class DeviceIndex:
    """An allocator over many nodes that records what it has allocated."""

    def __init__(
        self,
        slices: Iterable[DeviceSlice],
        nodes: Mapping[str, Labels],
        classes: Mapping[str, Object],
        allocated: AllocatedDevices | None = None,
    ) -> None:
        self.allocated = allocated or AllocatedDevices()
        self._classes = classes
        self._matcher = DeviceMatcher(classes)
        index = Slices(slices)
        self._nodes = {
            name: _node(name, labels, index.pools(name, labels)) for name, labels in nodes.items()
        }
        self._order = list(self._nodes.values())
        self._first: dict[Hashable, int] = {}  # no earlier node has room for such a claim

    def allocate(self, claims: Sequence[Claim], node: str) -> Allocated | NotAllocated:
        """Return the result of `search.allocate` on that node; raises `ClaimError`."""
        return self._allocate_on(self._nodes[node], claims)

    def place(
        self, claims: Sequence[Claim], nodes: Sequence[str] | None = None
    ) -> Placed | NotAllocated:
        """
        Allocate the claims on the first node that has all the devices; raises `ClaimError`.

        A claim whose selector fails is refused on every node, as kube-scheduler does.
        """
        if nodes is not None:
            candidates = enumerate(self._nodes[name] for name in nodes if name in self._nodes)
            kind, start = None, 0
        else:
            kind = _kind(claims)
            start = self._first.get(kind, 0) if kind is not None else 0
            candidates = enumerate(self._order[start:], start) if start else enumerate(self._order)
        reason = "there is no node"
        for index, node in candidates:
            answer = self._allocate_on(node, claims)
            if isinstance(answer, Allocated):
                if kind is not None:
                    self._first[kind] = index
                return self._record(node, claims, answer)
            reason = answer.reason
        if kind is not None:
            self._first[kind] = len(self._order)
        return NotAllocated(reason)

    def release(self, allocations: Iterable[Object]) -> None:
        """Free the devices of allocations."""
        for released in allocations:
            self.allocated.remove(released)
        self._first.clear()

    def _record(self, node: _Node, claims: Sequence[Claim], answer: Allocated) -> Placed:
        """Record an answer as allocated."""
        allocations = tuple(
            allocation(claim, grants, node=node.name, classes=self._classes)
            for claim, grants in zip(claims, answer.claims, strict=True)
        )
        for granted in allocations:
            self.allocated.add(granted)
        return Placed(node.name, allocations)

    def _allocate_on(self, node: _Node, claims: Sequence[Claim]) -> Allocated | NotAllocated:
        """Allocate the claims on a node, without a search if possible."""
        if node.is_plain and len(claims) == 1:
            quick = self._quick(node, claims[0])
            if quick is not None:
                return quick
        return search.allocate(
            claims,
            node=node.name,
            labels=node.labels,
            pools=node.pools,
            matcher=self._matcher,
            allocated=self.allocated,
        )

    def _quick(self, node: _Node, claim: Claim) -> Allocated | NotAllocated | None:
        """Return the answer where it is known without a search; else None."""
        if not _is_plain(claim):
            return None
        request = claim.requests[0][0]
        candidates = self._selected_on(node, claim, request)
        if candidates is None:
            return None
        allocated, count = self.allocated.devices, request.count
        if claim.constraints:
            chosen = _equal_devices(claim.constraints[0].match, candidates, allocated, count)
        else:
            chosen = []
            for device in candidates:
                if device.id not in allocated:
                    chosen.append(device)
                    if len(chosen) == count:
                        break
        if len(chosen) < count:
            return NotAllocated("cannot allocate all claims")
        return Allocated((tuple(DeviceGrant(request, device) for device in chosen),))

    def _selected_on(
        self, node: _Node, claim: Claim, request: DeviceRequest
    ) -> list[Device] | None:
        """Return the devices of a node that a request selects; None if only a search can tell."""
        key = _selection_key(request)
        if key in node.selected:
            return node.selected[key]
        devices: list[Device] | None
        try:
            devices = [
                device
                for pool in node.pools
                if pool.is_usable
                for device in pool.devices
                if self._matcher.selects(claim.name, request, device)
                and matches_node(device.scope, node.name, node.labels)
                and search.tolerates(request, device)
                and capacity.fits(device, request.capacity)
            ]
        except ClaimError:
            devices = None  # a search may end before it reaches the device that fails
        node.selected[key] = devices
        return devices


def _node(name: str, labels: Labels, pools: list[SlicePool]) -> _Node:
    plain = not any(
        pool.invalid or any(device.counters or device.multiple for device in pool.devices)
        for pool in pools
    )
    return _Node(name, labels, pools, plain)


def _is_plain(claim: Claim) -> bool:
    """Return whether a claim is one request for a number of devices, with at most one `match`."""
    if len(claim.requests) != 1 or claim.is_list[0]:
        return False
    request = claim.requests[0][0]
    if request.everything or request.admin or request.count > MOST_DEVICES:
        return False
    constraints = claim.constraints
    return not constraints or (
        len(constraints) == 1 and bool(constraints[0].match) and constraints[0].concerns(request)
    )


def _kind(claims: Sequence[Claim]) -> Hashable:
    """Return a key that is equal for claims that fit the same nodes; None if that is unknown."""
    if len(claims) != 1 or not _is_plain(claims[0]):
        return None
    claim = claims[0]
    request = claim.requests[0][0]
    match = claim.constraints[0].match if claim.constraints else ""
    return _selection_key(request), request.count, match


def _selection_key(request: DeviceRequest) -> Hashable:
    """Return a key that is equal for requests that select the same devices."""
    return (
        request.device_class,
        request.selectors,
        tuple(tuple(sorted(toleration.items())) for toleration in request.tolerations),
        tuple(sorted(request.capacity.items())),
    )


def _equal_devices(
    attribute: str, devices: Sequence[Device], allocated: set[DeviceId], count: int
) -> list[Device]:
    """
    Return the first `count` free devices that are equal in an attribute; [] if there are none.
    """
    groups: dict[Any, list[Device]] = {}
    for device in devices:
        if device.id in allocated:
            continue
        value_of_device = device.attribute(attribute)
        if value_of_device is None:
            continue
        value = value_key(value_of_device)
        # A list equals nothing, not even itself, so such a device is a group of its own.
        group = groups.setdefault(device.id if value is None else value, [])
        group.append(device)
    return next((group[:count] for group in groups.values() if len(group) >= count), [])
