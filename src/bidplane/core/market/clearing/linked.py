"""
The choice of the best linked GPUs of one machine, for a need that any of them would serve.

In this order: on one link, the fastest first; on one NUMA node; in one machine. Among equals GPUs
of one lot go before those of several, which differ in memory, width or NVLinks; then few domains
before many, and domains that are used up before ones that are broken into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Loose(NamedTuple):
    """So many GPUs of one machine, of any of these lots and wherever in it."""

    gpus: int
    lots: tuple[str, ...]


class Linked(Protocol):
    """GPUs of one machine and one lot that are on one link."""

    lot: str
    numa: str
    speed: int


Share = tuple[int, int]  # the place of a domain among those given, and how many GPUs of it


def gathered(
    need: Loose, domains: Sequence[Linked], room: Sequence[int]
) -> Iterator[tuple[Share, ...]]:
    """Yield sets of GPUs that serve a need, the best linked first; `room` is by domain."""
    usable = [i for i, domain in enumerate(domains) if domain.lot in need.lots and room[i] > 0]
    alone = [i for i in usable if room[i] >= need.gpus]
    for i in sorted(alone, key=lambda i: (-domains[i].speed, room[i], i)):
        yield ((i, need.gpus),)
    by_numa: dict[tuple[str, str], list[int]] = {}
    by_lot: dict[str, list[int]] = {}
    for i in usable:
        domain = domains[i]
        by_lot.setdefault(domain.lot, []).append(i)
        if domain.numa:
            by_numa.setdefault((domain.lot, domain.numa), []).append(i)
            by_numa.setdefault(("", domain.numa), []).append(i)
    of_one_lot = [group for (lot, _), group in by_numa.items() if lot]
    mixed = [group for (lot, _), group in by_numa.items() if not lot]
    for groups in (of_one_lot, mixed, list(by_lot.values()), [usable]):
        able = [group for group in groups if sum(room[i] for i in group) >= need.gpus]
        for group in sorted(able, key=lambda group: (sum(room[i] for i in group), group)):
            if choice := _few(group, need.gpus, room):
                yield choice


def _few(group: Sequence[int], gpus: int, room: Sequence[int]) -> tuple[Share, ...]:
    """Take whole domains, the largest first, and the rest of the tightest that has it."""
    candidates = sorted(group, key=lambda i: (-room[i], i))
    shares: list[Share] = []
    while gpus:
        last = [i for i in candidates if room[i] >= gpus]
        chosen = min(last, key=lambda i: (room[i], i)) if last else candidates[0]
        candidates.remove(chosen)
        shares.append((chosen, min(gpus, room[chosen])))
        gpus -= shares[-1][1]
    return tuple(shares)
