"""
Does a set of blocks fit? The only question clearing asks about supply.

Two kinds of block take part. A *pinned* one (a running lease) uses GPUs of its own
domain. A *movable* one (a new bid) may go to any domain with room. Because every block
size divides the larger ones, movable blocks need no packing: putting a block of size s
anywhere lowers the number of free blocks of every size l ≤ s by exactly s/l. So a set
fits if and only if, with the pinned blocks taken out of their domains, for every size l

    Σ over movable blocks of size s ≥ l of s/l   ≤   Σ over domains of ⌊free/l⌋

This is exact for domains of any size, and therefore downward-closed: every subset of a
set that fits, fits. Critical prices rest on that (see `clearing`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bidplane.core.market.model import CHAIN

Counters = tuple[int, ...]  # one per size in CHAIN


class Block(msgspec.Struct, frozen=True):
    size: int
    domain: str = ""  # "" is movable


class Room:
    """
    What is left once some blocks are in. Immutable: `take` and `give` return another.

    `spare[k]` is how many more blocks of size CHAIN[k] would fit; a negative number says
    that the blocks inside do not fit.
    """

    __slots__ = ("free", "spare")

    def __init__(self, free: Mapping[str, int], spare: Counters | None = None) -> None:
        self.free = free  # by domain, pinned blocks taken out
        self.spare = _count(free) if spare is None else spare

    def __repr__(self) -> str:
        counters = " ".join(f"{n}×{size}" for n, size in zip(self.spare, CHAIN, strict=True))
        return f"<Room {counters}>"

    def take(self, block: Block) -> Room:
        return self._with(block, 1)

    def give(self, block: Block) -> Room:
        """The room as it would be without `block`, which must be inside."""
        return self._with(block, -1)

    def fits(self, block: Block) -> bool:
        if block.domain and self.free.get(block.domain, 0) < block.size:
            return False
        return min(self.take(block).spare) >= 0

    def _with(self, block: Block, sign: int) -> Room:
        if not block.domain:
            # A movable block of size s needs s/l of every smaller size, none of a larger.
            return Room(
                self.free,
                tuple(
                    n - sign * (block.size // size)
                    for n, size in zip(self.spare, CHAIN, strict=True)
                ),
            )
        # A pinned one also breaks larger blocks, by how much depends on its domain.
        before = self.free[block.domain]
        after = before - sign * block.size
        return Room(
            {**self.free, block.domain: after},
            tuple(
                n - before // size + after // size
                for n, size in zip(self.spare, CHAIN, strict=True)
            ),
        )


def _count(free: Mapping[str, int]) -> Counters:
    return tuple(sum(n // size for n in free.values()) for size in CHAIN)
