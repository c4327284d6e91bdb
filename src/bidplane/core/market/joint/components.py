"""
The lots that are cleared together.

Whoever needs, or has, GPUs of several lots joins them; so do those who share one of these lots,
and so on. Most lots are joined by nobody, and are cleared alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.lot import Admitted, RefusedBid
from bidplane.core.market.joint.capacity import Joint
from bidplane.core.market.model import Incumbent, Lot, RoundInput


class Component(NamedTuple):
    """Lots that are cleared together, and all who compete in any of them."""

    lots: list[Lot]
    entries: list[Admitted]
    incumbents: list[Incumbent]
    refused: list[RefusedBid]

    @property
    def is_joint(self) -> bool:
        if len(self.lots) > 1:
            return True
        return any(isinstance(block, Joint) for block in _blocks(self.entries, self.refused))


def _blocks(entries: Iterable[Admitted], refused: Iterable[RefusedBid]) -> Iterator[Block]:
    yield from (entry.block for entry in entries)
    yield from (refusal.block for refusal in refused)


def components(
    round_input: RoundInput, admitted: Iterable[Admitted], refused: Iterable[RefusedBid]
) -> list[Component]:
    """Group the lots of a round that some bid or lease spans together; in the order of names."""
    admitted, refused = list(admitted), list(refused)
    parent = {lot.name: lot.name for lot in round_input.lots}

    def top(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    joints = [block for block in _blocks(admitted, refused) if isinstance(block, Joint)]
    together = [[lot for lot, _ in block.lots] for block in joints]
    together += [[i.lot, *(part.lot for part in i.also)] for i in round_input.incumbents if i.also]
    for names in together:
        first, *later = sorted({top(name) for name in names})
        for other in later:
            parent[other] = first
    by_top: dict[str, Component] = {}
    for lot in sorted(round_input.lots, key=lambda lot: lot.name):
        component = by_top.setdefault(top(lot.name), Component([], [], [], []))
        component.lots.append(lot)
    for entry in admitted:
        by_top[top(entry.lot.name)].entries.append(entry)
    for lease in round_input.incumbents:
        by_top[top(lease.lot)].incumbents.append(lease)
    for refusal in refused:
        if refusal.loss.lot:
            by_top[top(refusal.loss.lot)].refused.append(refusal)
    return list(by_top.values())
