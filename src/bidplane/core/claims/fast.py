"""
The allocator for a whole fleet, quick where claims are plain, and the same as `search` everywhere.

A plain claim has one request for a number of devices, and at most one attribute in which they
must be equal. On a node whose devices are neither cut nor shared, the first answer of the search
is then known without searching: of the devices meant, in order, the first that are free; or those
of the first group that is large enough. Which devices a request means is asked once a node.

A node that had no room has none until something is given back, so that each kind of claim is
looked for from the first node that may still have it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.kinds import Object
from bidplane.core.claims import capacity, search
from bidplane.core.claims.model import (
    MOST_DEVICES,
    Claim,
    ClaimError,
    Device,
    DeviceId,
    Request,
    Slice,
    Taken,
    matches_node,
    value_key,
)
from bidplane.core.claims.pools import Pool, Slices
from bidplane.core.claims.result import allocation
from bidplane.core.claims.search import Allocated, Given, Refused
from bidplane.core.claims.selecting import Selecting

Labels = Mapping[str, str]


class Placed(msgspec.Struct, frozen=True, eq=False):
    node: str
    allocations: tuple[dict[str, Any], ...]  # one for each claim


class _Node(msgspec.Struct, eq=False):
    name: str
    labels: Labels
    pools: list[Pool]
    is_plain: bool  # no counters, no shares
    meant: dict[Hashable, list[Device] | None] = {}  # None: must be searched


class Fleet:
    def __init__(
        self,
        slices: Iterable[Slice],
        nodes: Mapping[str, Labels],
        classes: Mapping[str, Object],
        taken: Taken | None = None,
    ) -> None:
        self.taken = taken or Taken()
        self._classes = classes
        self._selecting = Selecting(classes)
        found = Slices(slices)
        self._nodes = {
            name: _node(name, labels, found.pools(name, labels)) for name, labels in nodes.items()
        }
        self._order = list(self._nodes.values())
        self._first: dict[Hashable, int] = {}  # before it no node has room for such a claim

    def allocate(self, claims: Sequence[Claim], node: str) -> Allocated | Refused:
        """As `search.allocate` on that node; raises `ClaimError`."""
        return self._on(self._nodes[node], claims)

    def place(
        self, claims: Sequence[Claim], nodes: Sequence[str] | None = None
    ) -> Placed | Refused:
        """
        Devices on the first node that has them all, taken at once; raises `ClaimError`.

        A claim whose selector fails is refused on every node, as kube-scheduler does.
        """
        if nodes is not None:
            candidates = enumerate(self._nodes[name] for name in nodes if name in self._nodes)
            kind, start = None, 0
        else:
            kind = _kind(claims)
            start = self._first.get(kind, 0) if kind is not None else 0
            candidates = enumerate(self._order[start:], start) if start else enumerate(self._order)
        why = "there is no node"
        for at, node in candidates:
            answer = self._on(node, claims)
            if isinstance(answer, Allocated):
                if kind is not None:
                    self._first[kind] = at
                return self._take(node, claims, answer)
            why = answer.reason
        if kind is not None:
            self._first[kind] = len(self._order)
        return Refused(why)

    def release(self, allocations: Iterable[Object]) -> None:
        for one in allocations:
            self.taken.remove(one)
        self._first.clear()

    def _take(self, node: _Node, claims: Sequence[Claim], answer: Allocated) -> Placed:
        made = tuple(
            allocation(claim, given, node=node.name, classes=self._classes)
            for claim, given in zip(claims, answer.claims, strict=True)
        )
        for one in made:
            self.taken.add(one)
        return Placed(node.name, made)

    def _on(self, node: _Node, claims: Sequence[Claim]) -> Allocated | Refused:
        if node.is_plain and len(claims) == 1:
            quick = self._quick(node, claims[0])
            if quick is not None:
                return quick
        return search.allocate(
            claims,
            node=node.name,
            labels=node.labels,
            pools=node.pools,
            selecting=self._selecting,
            taken=self.taken,
        )

    def _quick(self, node: _Node, claim: Claim) -> Allocated | Refused | None:
        """The answer, where it is known without a search."""
        if not _is_plain(claim):
            return None
        request = claim.requests[0][0]
        meant = self._meant(node, claim, request)
        if meant is None:
            return None
        taken, count = self.taken.devices, request.count
        if claim.constraints:
            chosen = _equal(claim.constraints[0].match, meant, taken, count)
        else:
            chosen = []
            for device in meant:
                if device.id not in taken:
                    chosen.append(device)
                    if len(chosen) == count:
                        break
        if len(chosen) < count:
            return Refused("cannot allocate all claims")
        return Allocated((tuple(Given(request, device) for device in chosen),))

    def _meant(self, node: _Node, claim: Claim, request: Request) -> list[Device] | None:
        key = _meaning(request)
        if key in node.meant:
            return node.meant[key]
        found: list[Device] | None
        try:
            found = [
                device
                for pool in node.pools
                if pool.is_usable
                for device in pool.devices
                if self._selecting.selects(claim.name, request, device)
                and matches_node(device.where, node.name, node.labels)
                and search.tolerates(request, device)
                and capacity.fits(device, request.capacity)
            ]
        except ClaimError:
            found = None  # the search may end before it comes to the device that fails
        node.meant[key] = found
        return found


def _node(name: str, labels: Labels, pools: list[Pool]) -> _Node:
    plain = not any(
        pool.invalid or any(device.counters or device.multiple for device in pool.devices)
        for pool in pools
    )
    return _Node(name, labels, pools, plain)


def _is_plain(claim: Claim) -> bool:
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
    """Claims of one kind fit the same nodes; None for those of which that is not known."""
    if len(claims) != 1 or not _is_plain(claims[0]):
        return None
    claim = claims[0]
    request = claim.requests[0][0]
    match = claim.constraints[0].match if claim.constraints else ""
    return _meaning(request), request.count, match


def _meaning(request: Request) -> Hashable:
    return (
        request.device_class,
        request.selectors,
        tuple(tuple(sorted(one.items())) for one in request.tolerations),
        tuple(sorted(request.capacity.items())),
    )


def _equal(
    attribute: str, meant: Sequence[Device], taken: set[DeviceId], count: int
) -> list[Device]:
    groups: dict[Any, list[Device]] = {}
    for device in meant:
        if device.id in taken:
            continue
        found = device.attribute(attribute)
        if found is None:
            continue
        value = value_key(found)
        # A list equals nothing, not even itself: such a device can only be alone.
        group = groups.setdefault(device.id if value is None else value, [])
        group.append(device)
    return next((group[:count] for group in groups.values() if len(group) >= count), [])
