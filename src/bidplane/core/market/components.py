"""
Which lots are cleared together.

Whoever needs, or has, GPUs of several lots joins them; so do those who share one of these lots,
and so on. Most lots are joined by nobody, and are cleared alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bidplane.core.chain import Block
from bidplane.core.market.lot import Admitted, Refused
from bidplane.core.market.model import Incumbent, Lot, RoundInput
from bidplane.core.market.rooms import Joint


class Component(NamedTuple):
    """Lots that are cleared together, and all who compete in any of them."""

    lots: list[Lot]
    entries: list[Admitted]
    incumbents: list[Incumbent]
    refused: list[Refused]

    @property
    def is_joint(self) -> bool:
        if len(self.lots) > 1:
            return True
        return any(isinstance(block, Joint) for block in _blocks(self.entries, self.refused))


def _blocks(entries: Iterable[Admitted], refused: Iterable[Refused]) -> Iterator[Block]:
    yield from (entry.block for entry in entries)
    yield from (refusal.block for refusal in refused)


def components(
    given: RoundInput, admitted: Iterable[Admitted], refused: Iterable[Refused]
) -> list[Component]:
    """The lots of a round, by which somebody needs or has together; in the order of names."""
    admitted, refused = list(admitted), list(refused)
    parent = {lot.name: lot.name for lot in given.lots}

    def top(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    joints = [block for block in _blocks(admitted, refused) if isinstance(block, Joint)]
    together = [[lot for lot, _ in block.lots] for block in joints]
    together += [[i.lot, *(part.lot for part in i.also)] for i in given.incumbents if i.also]
    for names in together:
        first, *others = sorted({top(name) for name in names})
        for other in others:
            parent[other] = first
    found: dict[str, Component] = {}
    for lot in sorted(given.lots, key=lambda lot: lot.name):
        some = found.setdefault(top(lot.name), Component([], [], [], []))
        some.lots.append(lot)
    for entry in admitted:
        found[top(entry.lot.name)].entries.append(entry)
    for lease in given.incumbents:
        found[top(lease.lot)].incumbents.append(lease)
    for refusal in refused:
        if refusal.loss.lot:
            found[top(refusal.loss.lot)].refused.append(refusal)
    return list(found.values())
