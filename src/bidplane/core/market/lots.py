"""
The division of a pool's devices into lots: devices of one lot are alike for a buyer.

A lot is the set of devices that are equal in everything the pool sells by. A bid's selector
is true or false of a whole lot, never of a part: if it is true for some devices of a lot and
not for others, the lot splits. That costs every buyer a little choice, so a pool splits into
`most` lots and no further; a selector that would need more is too fine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from bidplane.core.cel import CelError
from bidplane.core.cel import devices as cel
from bidplane.core.devices.claims.hints import hint
from bidplane.core.devices.claims.model import named, value_key

LOTS_MOST = 16

Selects = Callable[[str, bytes], bool]  # of a selector and a device's facts; raises CelError
Alike = tuple[str, ...]  # what devices have in common that are sold together


class DeviceKind(NamedTuple):
    """A device as selectors see it; devices of equal kinds are interchangeable."""

    alike: Alike
    facts: bytes  # JSON of the CEL variable `device`


class Partition(NamedTuple):
    names: dict[DeviceKind, str]  # by kind, the lot its devices are in
    true_of: dict[str, frozenset[str]]  # by selector, the lots it is true of
    too_fine: frozenset[str]  # selectors that would split the pool into too many
    broken: dict[str, str]  # selectors that fail, and how


def facts(driver: str, device: Mapping[str, Any]) -> bytes:
    """The JSON of a ResourceSlice's device that a selector is evaluated on."""
    fields = ("attributes", "capacity", "allowMultipleAllocations")
    visible = {field: device[field] for field in fields if device.get(field)}
    return msgspec.json.encode({**visible, "driver": driver}, order="sorted")


@lru_cache(maxsize=65_536)  # the same few selectors and devices, every second
def selects(selector: str, device: bytes) -> bool:
    """
    Return True if the selector is true of the device. Raises CelError, also when it names an
    attribute that the device does not have.
    """
    variables = msgspec.json.decode(device)
    driver = variables["driver"]
    return cel.compile(selector).matches(
        driver,
        variables.get("allowMultipleAllocations", False),
        cel.values_of(variables.get("attributes", {}), driver, cel.attribute_value),
        cel.values_of(variables.get("capacity", {}), driver, cel.capacity_value),
    )


@lru_cache(maxsize=65_536)
def value_of(attribute: str, device: bytes) -> tuple[str, Any] | None:
    """
    The value by which devices are compared in the attribute of that full name; None if it has none.
    """
    variables = msgspec.json.decode(device)
    value = named(variables.get("attributes", {}), attribute, variables["driver"])
    return value_key(value) if value else None


def partition(
    pool: str,
    kinds: Iterable[DeviceKind],
    selectors: Sequence[str],
    *,
    most: int = LOTS_MOST,
    selects: Selects = selects,
) -> Partition:
    """
    Divide a pool into lots, given the selectors of its bids, the oldest first: of two that would
    each split it once too often, the earlier may. `selects` answers for a selector.
    """
    kinds = sorted(set(kinds))
    groups: dict[DeviceKind, tuple[Alike, tuple[bool, ...]]] = {k: (k.alike, ()) for k in kinds}
    true_for: dict[str, set[DeviceKind]] = {}
    too_fine: set[str] = set()
    broken: dict[str, str] = {}
    for selector in dict.fromkeys(selectors):
        try:
            true_for[selector] = {kind for kind in kinds if selects(selector, kind.facts)}
        except CelError as error:
            broken[selector] = f"{error}{_attribute_hint(selector, kinds)}"
            continue
        finer = {
            kind: (alike, (*bits, kind in true_for[selector]))
            for kind, (alike, bits) in groups.items()
        }
        before, after = len(set(groups.values())), len(set(finer.values()))
        if after == before:
            continue  # it splits nothing: each lot is all of it, or none
        if after > most:
            too_fine.add(selector)
            del true_for[selector]
        else:
            groups = finer
    names = _names(pool, groups)
    return Partition(
        names,
        {s: frozenset(names[kind] for kind in true_kinds) for s, true_kinds in true_for.items()},
        frozenset(too_fine),
        broken,
    )


def _attribute_hint(selector: str, kinds: Sequence[DeviceKind]) -> str:
    """A hint at the attribute of the first device that the selector may have meant."""
    variables = msgspec.json.decode(kinds[0].facts) if kinds else {"driver": ""}
    return hint(selector, variables["driver"], variables.get("attributes", {}))


def _names(
    pool: str, groups: Mapping[DeviceKind, tuple[Alike, tuple[bool, ...]]]
) -> dict[DeviceKind, str]:
    """
    The lot of each kind. A single lot has the pool's name; several are named after their devices.
    """
    distinct = sorted(set(groups.values()))
    if len(distinct) <= 1:
        return dict.fromkeys(groups, pool)
    texts = [f"{pool}/{','.join(filter(None, alike)) or 'other'}" for alike, _ in distinct]
    for group, text in zip(distinct, list(texts), strict=True):
        if texts.count(text) > 1:  # told apart by a selector alone
            bits = "".join("y" if bit else "n" for bit in group[1])
            texts[distinct.index(group)] = f"{text};{bits}"
    named = dict(zip(distinct, texts, strict=True))
    return {kind: named[group] for kind, group in groups.items()}
