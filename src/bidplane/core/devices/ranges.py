"""
Sets of the units of one GPU, as ranges: which of them a part has, and which are free.

A set is a flat tuple, from and to, pair after pair: `(0, 720, 2000, 2400)` is 1120 units. Ranges
are in order and never touch. Any units will do for a part, next to each other or not: they are
names, by which two leases of one GPU are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from bidplane.api.lease import DeviceRef
from bidplane.api.shape import PART_UNITS

Ranges: TypeAlias = tuple[int, ...]

WHOLE: Ranges = (0, PART_UNITS)
# Parts used to be eighths, and MIG instances are memory slices: both are numbered from 0 to 7.
_PER_SLOT = PART_UNITS // 8


def pairs(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield each range, from and to."""
    return zip(ranges[::2], ranges[1::2], strict=True)


def size_of(ranges: Ranges) -> int:
    """Return the number of units in the set."""
    return sum(ranges[1::2]) - sum(ranges[::2])


def union(sets: Iterable[Ranges]) -> Ranges:
    """Return what is in any of the sets."""
    joined: list[int] = []
    for start, end in sorted(pair for ranges in sets for pair in pairs(ranges)):
        if joined and start <= joined[-1]:
            joined[-1] = max(joined[-1], end)
        else:
            joined += (start, end)
    return tuple(joined)


def minus(ranges: Ranges, removed: Ranges) -> Ranges:
    """Return what is in the first set and not in the second."""
    rest: list[int] = []
    for start, end in pairs(ranges):
        at = start
        for first, last in pairs(removed):
            if last <= at or first >= end:
                continue
            if first > at:
                rest += (at, first)
            at = max(at, last)
        if at < end:
            rest += (at, end)
    return tuple(rest)


def overlap(first: Ranges, second: Ranges) -> bool:
    """Return True if the sets have a unit in common."""
    return minus(first, second) != first


def take(ranges: Ranges, units: int) -> tuple[Ranges, Ranges]:
    """Return the first `units` units of the set, and the rest."""
    borders: list[int] = []
    for start, end in pairs(ranges):
        if units <= 0:
            break
        end = min(end, start + units)
        borders += (start, end)
        units -= end - start
    first = tuple(borders)
    return first, minus(ranges, first)


def occupied(device: DeviceRef) -> Ranges:
    """Return the units of its GPU that a leased device, or part of one, is."""
    if not device.share:
        return WHOLE
    if device.units:
        return device.units
    return of_eighths(device.slots)


def of_eighths(slots: Iterable[int]) -> Ranges:
    """Return the units of eighths, or memory slices, that are numbered from 0 to 7."""
    return union((_PER_SLOT * slot, _PER_SLOT * (slot + 1)) for slot in slots)
