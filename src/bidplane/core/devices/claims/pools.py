"""
Pools: the slices of one driver that belong together, as one node sees them.

A driver replaces its slices one by one, so a pool may be half old and half new. Slices of an older
generation do not count. A pool with missing slices is *incomplete*, and one that contradicts itself
is *invalid*. Neither is allocated from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from bidplane.core.devices.claims.model import Device, DeviceSlice, PoolId, matches_node

Counters = Mapping[str, Mapping[str, Fraction]]  # by set, by name


class SlicePool(msgspec.Struct, frozen=True, eq=False):
    """A pool, with the devices that one node reaches."""

    id: PoolId
    devices: tuple[Device, ...] = ()  # in the order they are tried
    elsewhere: tuple[Device, ...] = ()  # not reached from this node, but they use counters
    counters: Counters = {}
    incomplete: bool = False
    invalid: str = ""  # the reason; "" if it is valid

    @property
    def is_usable(self) -> bool:
        """True if the pool's devices may be allocated."""
        return not (self.incomplete or self.invalid)


class Slices:
    """The slices of all drivers, indexed by node and by pool."""

    def __init__(self, slices: Iterable[DeviceSlice]) -> None:
        self.on_node: dict[str, list[DeviceSlice]] = defaultdict(list)
        self.shared: list[DeviceSlice] = []
        self.in_pool: dict[PoolId, list[DeviceSlice]] = defaultdict(list)
        for slice_ in slices:
            (self.on_node[slice_.scope.node] if slice_.scope.node else self.shared).append(slice_)
            self.in_pool[slice_.pool].append(slice_)

    def pools(self, node: str, labels: Mapping[str, str]) -> list[SlicePool]:
        """Return the pools that `node` can reach, in the order they are tried."""
        newest: dict[PoolId, list[DeviceSlice]] = {}
        for slice_ in (*self.on_node.get(node, ()), *self.shared):
            if not _reaches(slice_, node, labels):
                continue
            current = newest.setdefault(slice_.pool, [])
            if current and slice_.generation > current[0].generation:
                current.clear()
            if not current or slice_.generation == current[0].generation:
                current.append(slice_)
        pools = [
            pool for id, slices in newest.items() if (pool := self._pool(id, slices)) is not None
        ]
        # Devices that still have to be prepared come last.
        return sorted(pools, key=lambda pool: (_needs_binding(pool), pool.id))

    def _pool(self, id: PoolId, reached: list[DeviceSlice]) -> SlicePool | None:
        """
        Return the pool of the newest reached slices; None while a newer generation replaces it.
        """
        first = reached[0]
        all_slices = reached
        if len(reached) != first.slices_in_pool:
            # Some slices may be out of this node's reach.
            in_pool = self.in_pool[id]
            if any(slice_.generation > first.generation for slice_ in in_pool):
                return None  # being replaced
            all_slices = [slice_ for slice_ in in_pool if slice_.generation == first.generation]
            if len(all_slices) != first.slices_in_pool:
                return SlicePool(id, incomplete=True)
        return _build_pool(id, reached, all_slices)


def _reaches(slice_: DeviceSlice, node: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node reaches any device of a slice."""
    if slice_.scope.is_given:
        return matches_node(slice_.scope, node, labels)
    if slice_.per_device_nodes:
        return any(matches_node(device.scope, node, labels) for device in slice_.devices)
    return False


def _needs_binding(pool: SlicePool) -> bool:
    """Return whether devices of a pool must be prepared before a pod is bound."""
    return any(device.raw.get("bindingConditions") is not None for device in pool.devices)


def _build_pool(
    id: PoolId, reached: Sequence[DeviceSlice], all_slices: Sequence[DeviceSlice]
) -> SlicePool:
    """
    Build a pool from all slices of its generation; it is invalid if they contradict each other.
    """
    reached_names = {slice_.name for slice_ in reached}
    ordered = sorted(reached, key=lambda slice_: slice_.name)
    devices = tuple(d for slice_ in ordered if not slice_.counter_sets for d in slice_.devices)
    elsewhere = tuple(
        d
        for slice_ in all_slices
        if slice_.name not in reached_names and not slice_.counter_sets
        for d in slice_.devices
    )
    names: set[str] = set()
    for device in devices:
        if device.id.name in names:
            return SlicePool(id, invalid=f"duplicate device name {device.id.name}")
        names.add(device.id.name)
    counters: dict[str, Mapping[str, Fraction]] = {}
    for slice_ in all_slices:
        for name, counts in slice_.counter_sets:
            if name in counters:
                return SlicePool(id, invalid=f"duplicate counter set name {name}")
            counters[name] = counts
    for device in (*devices, *elsewhere):
        for name, counts in device.counters:
            if name not in counters:
                return SlicePool(id, invalid=f"counter set {name} not found")
            for counter in counts:
                if counter not in counters[name]:
                    return SlicePool(
                        id, invalid=f"counter {counter} not found in counter set {name}"
                    )
    return SlicePool(id, devices, elsewhere, counters)
