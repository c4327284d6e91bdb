"""
How a pool's devices become lots: which of them are alike for a buyer.

A lot is the set of devices that are equal in everything the pool sells by. A bid's selector
is true or false of a whole lot, never of a part: if it is true for some devices of a lot and
not for others, the lot splits. That costs every buyer a little choice, so a pool splits into
`most` lots and no further; a selector that would need more is too fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from bidplane.core.cel import CelError
from bidplane.core.cel import devices as cel
from bidplane.core.claims.hints import hint

LOTS_MOST = 16

Alike = tuple[str, ...]  # what devices have in common that are sold together


class Kind(NamedTuple):
    """A device as selectors see it: equal ones are told apart by nothing."""

    alike: Alike
    facts: bytes  # JSON of the CEL variable `device`


class Partition(NamedTuple):
    names: dict[Kind, str]  # by kind, the lot its devices are in
    true_of: dict[str, frozenset[str]]  # by selector, the lots it is true of
    too_fine: frozenset[str]  # selectors that would split the pool into too many
    broken: dict[str, str]  # selectors that fail, and how


def facts(driver: str, device: Mapping[str, Any]) -> bytes:
    """What a selector sees of a ResourceSlice's device."""
    fields = ("attributes", "capacity", "allowMultipleAllocations")
    seen = {field: device[field] for field in fields if device.get(field)}
    return msgspec.json.encode({**seen, "driver": driver}, order="sorted")


@lru_cache(maxsize=65_536)  # the same few selectors and devices, every second
def selects(selector: str, device: bytes) -> bool:
    """Raises CelError, also when it names an attribute the device has not."""
    seen = msgspec.json.decode(device)
    driver = seen["driver"]
    return cel.compile(selector).matches(
        driver,
        seen.get("allowMultipleAllocations", False),
        cel.values_of(seen.get("attributes", {}), driver, cel.attribute_value),
        cel.values_of(seen.get("capacity", {}), driver, cel.capacity_value),
    )


def partition(
    pool: str, kinds: Iterable[Kind], selectors: Sequence[str], *, most: int = LOTS_MOST
) -> Partition:
    """
    The lots of a pool, given the selectors of its bids, the oldest first: of two that
    would each split it once too often, the earlier may.
    """
    kinds = sorted(set(kinds))
    groups: dict[Kind, tuple[Alike, tuple[bool, ...]]] = {k: (k.alike, ()) for k in kinds}
    true_for: dict[str, set[Kind]] = {}
    too_fine: set[str] = set()
    broken: dict[str, str] = {}
    for selector in dict.fromkeys(selectors):
        try:
            true_for[selector] = {kind for kind in kinds if selects(selector, kind.facts)}
        except CelError as error:
            broken[selector] = f"{error}{_meant(selector, kinds)}"
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
        {s: frozenset(names[kind] for kind in found) for s, found in true_for.items()},
        frozenset(too_fine),
        broken,
    )


def _meant(selector: str, kinds: Sequence[Kind]) -> str:
    """What the first device has that it may have been meant for."""
    seen = msgspec.json.decode(kinds[0].facts) if kinds else {"driver": ""}
    return hint(selector, seen["driver"], seen.get("attributes", {}))


def _names(pool: str, groups: Mapping[Kind, tuple[Alike, tuple[bool, ...]]]) -> dict[Kind, str]:
    """A pool of one lot is called like it; of several, each by what its devices are."""
    found = sorted(set(groups.values()))
    if len(found) <= 1:
        return dict.fromkeys(groups, pool)
    texts = [f"{pool}/{','.join(filter(None, alike)) or 'other'}" for alike, _ in found]
    for group, text in zip(found, list(texts), strict=True):
        if texts.count(text) > 1:  # told apart by a selector alone
            bits = "".join("y" if bit else "n" for bit in group[1])
            texts[found.index(group)] = f"{text};{bits}"
    named = dict(zip(found, texts, strict=True))
    return {kind: named[group] for kind, group in groups.items()}
