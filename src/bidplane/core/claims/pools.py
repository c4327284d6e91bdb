"""
Pools: the slices of one driver that belong together, as one node sees them.

A driver replaces its slices one by one, so what is there may be half of the old and half of the
new. Slices of an older generation do not count; a pool some of whose slices are missing is
*incomplete*, and one that contradicts itself is *invalid*. Neither is allocated from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from bidplane.core.claims.model import Device, PoolId, Slice, matches_node

Counters = Mapping[str, Mapping[str, Fraction]]  # by set, by name


class Pool(msgspec.Struct, frozen=True, eq=False):
    id: PoolId
    devices: tuple[Device, ...] = ()  # in the order they are tried
    elsewhere: tuple[Device, ...] = ()  # not reached from this node, but counted
    counters: Counters = {}
    incomplete: bool = False
    invalid: str = ""  # why

    @property
    def is_usable(self) -> bool:
        return not (self.incomplete or self.invalid)


class Slices:
    """All slices, found by node and by pool."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self.on_node: dict[str, list[Slice]] = defaultdict(list)
        self.shared: list[Slice] = []
        self.in_pool: dict[PoolId, list[Slice]] = defaultdict(list)
        for one in slices:
            (self.on_node[one.where.node] if one.where.node else self.shared).append(one)
            self.in_pool[one.pool].append(one)

    def pools(self, node: str, labels: Mapping[str, str]) -> list[Pool]:
        """What `node` can reach, in the order it is tried."""
        newest: dict[PoolId, list[Slice]] = {}
        for one in (*self.on_node.get(node, ()), *self.shared):
            if not _reaches(one, node, labels):
                continue
            known = newest.setdefault(one.pool, [])
            if known and one.generation > known[0].generation:
                known.clear()
            if not known or one.generation == known[0].generation:
                known.append(one)
        found = [
            pool for id, slices in newest.items() if (pool := self._pool(id, slices)) is not None
        ]
        # Devices that still have to be prepared come last.
        return sorted(found, key=lambda pool: (_needs_binding(pool), pool.id))

    def _pool(self, id: PoolId, reached: list[Slice]) -> Pool | None:
        first = reached[0]
        everything = reached
        if len(reached) != first.slices_in_pool:
            # Some may only be out of this node's reach.
            others = self.in_pool[id]
            if any(one.generation > first.generation for one in others):
                return None  # being replaced
            everything = [one for one in others if one.generation == first.generation]
            if len(everything) != first.slices_in_pool:
                return Pool(id, incomplete=True)
        return _built(id, reached, everything)


def _reaches(one: Slice, node: str, labels: Mapping[str, str]) -> bool:
    if one.where.is_said:
        return matches_node(one.where, node, labels)
    if one.each_its_own:
        return any(matches_node(device.where, node, labels) for device in one.devices)
    return False


def _needs_binding(pool: Pool) -> bool:
    return any(device.raw.get("bindingConditions") is not None for device in pool.devices)


def _built(id: PoolId, reached: Sequence[Slice], everything: Sequence[Slice]) -> Pool:
    here = {one.name for one in reached}
    ordered = sorted(reached, key=lambda one: one.name)
    devices = tuple(d for one in ordered if not one.counter_sets for d in one.devices)
    elsewhere = tuple(
        d
        for one in everything
        if one.name not in here and not one.counter_sets
        for d in one.devices
    )
    names: set[str] = set()
    for device in devices:
        if device.id.name in names:
            return Pool(id, invalid=f"duplicate device name {device.id.name}")
        names.add(device.id.name)
    counters: dict[str, Mapping[str, Fraction]] = {}
    for one in everything:
        for name, counts in one.counter_sets:
            if name in counters:
                return Pool(id, invalid=f"duplicate counter set name {name}")
            counters[name] = counts
    for device in (*devices, *elsewhere):
        for name, counts in device.counters:
            if name not in counters:
                return Pool(id, invalid=f"counter set {name} not found")
            for counter in counts:
                if counter not in counters[name]:
                    return Pool(id, invalid=f"counter {counter} not found in counter set {name}")
    return Pool(id, devices, elsewhere, counters)
