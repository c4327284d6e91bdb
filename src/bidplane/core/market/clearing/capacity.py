"""
The test whether a set of blocks fits: the only question that clearing asks about supply.

Two kinds of block take part. A *pinned* one (a running lease) uses GPUs of its own
domains, however many. A *movable* one (a new bid) is of a size of the lot's chain, and may
go to any domain with room. Because every size of a chain divides the larger ones, movable
blocks need no packing: putting a block of size s anywhere lowers the number of free blocks
of every size l ≤ s by exactly s/l. So a set fits if and only if, with the pinned blocks
taken out of their domains, for every size l

    Σ over movable blocks of size s ≥ l of s/l   ≤   Σ over domains of ⌊free/l⌋

A GPU that is cut by MIG has a *leaf* per profile, each with its own count, and a whole GPU
needs all of its leaves. A *gang* is several blocks, all or nothing: it needs the sum of what
its blocks need. This is exact for domains of any size, and therefore downward-closed: every
subset of a set that fits, fits. Critical prices rest on that (see `clearing`).

A GPU that is sold in parts goes on with the chain: ½, ¼ … of it are leaves, each of which
divides the one before. A part may be of any size. One of t units counts as one of the next
leaf up (a whole GPU, if it is more than half), and needs ⌈t/l⌉ of every leaf l below that.
A GPU with f units free has ⌊f/l⌋ of each, and is a block of one if all of it is free.

* This is exact for parts that are leaves: ⌈t/l⌉ is t/l, as for whole blocks.
* It never accepts what does not fit. Place the larger first, each on any GPU that has a leaf of
  its size free. That lowers ⌊f/l⌋ by ⌈t/l⌉ at most, since ⌊(f - t)/l⌋ ≥ ⌊f/l⌋ - ⌈t/l⌉. So as
  long as the counts are kept, the next has a GPU as well.
* It is downward-closed: it is a sum.

What it may leave out is a part that fits a rest exactly and no leaf of its size: 0.4 beside
0.3 and 0.3. Such a part is sent to that GPU by name (`routing`), where it is pinned.

One thing is decided beforehand: a GPU that is already cut is by itself for the round. It is sold
as a block of one if every part of it is given up, and never as part of a larger block; one that
is cut by MIG stays cut.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import lru_cache

from bidplane.api.shape import PART_UNITS
from bidplane.core.devices.chain import CHAIN, PARTS, Block, Chain, Leaf

Counters = tuple[int, ...]  # one per size of the chain, then one per leaf


class Room:
    """
    The free capacity of a lot after some blocks were placed. Immutable: `take` and `give` return
    another.

    `spare[k]` is how many more blocks of the ladder's k-th size would fit; a negative
    number says that the blocks inside do not fit.

    `free` counts by container: whole GPUs by domain; for a GPU that is already cut, its
    free units, or its free leaves of one profile. `cut` says which of the latter.
    """

    __slots__ = ("chain", "cut", "free", "leaves", "spare")

    def __init__(
        self,
        free: Mapping[str, int],
        spare: Counters | None = None,
        *,
        leaves: tuple[Leaf, ...] = (),
        cut: Mapping[str, str] | None = None,
        chain: Chain = CHAIN,
    ) -> None:
        self.free = free
        self.chain = chain
        self.leaves = leaves
        self.cut = cut or {}  # by container: the leaf it has, or PARTS
        self.spare = self._count() if spare is None else spare

    def __repr__(self) -> str:
        names = [*map(str, self.chain), *(leaf.name for leaf in self.leaves)]
        counters = " ".join(f"{n}×{name}" for n, name in zip(self.spare, names, strict=True))
        return f"<Room {counters}>"

    def take(self, block: Block) -> Room:
        return self._with(block, 1)

    def give(self, block: Block) -> Room:
        """The room as it would be without `block`, which must be inside."""
        return self._with(block, -1)

    def fits(self, block: Block) -> bool:
        return self._fits(block, self.spare)

    def fits_without(self, leaving: Block, block: Block) -> bool:
        """Return True if `block` would fit once `leaving`, which is placed, were gone."""
        spare = self._spare_with(leaving, -1)
        if not block.is_pinned:
            return self._fits(block, spare)
        # Asked very often of lots with many domains: only what is asked about is looked at.
        returned = dict(_pins(leaving)) if leaving.is_pinned else {}
        for container, units in _pins(block):
            free = self.free.get(container, 0) + returned.get(container, 0)
            if free < units:
                return False
            less = _gain(self.cut.get(container, ""), free, -units, self.leaves, self.chain)
            spare = tuple(map(operator.add, spare, less))
        return min(spare) >= 0

    def gain(self, container: str, units: int) -> Counters:
        """The number of blocks of each size gained with more free units there, or lost."""
        cut, free = self.cut.get(container, ""), self.free[container]
        return _gain(cut, free, units, self.leaves, self.chain)

    def _fits(self, block: Block, spare: Counters) -> bool:
        if not block.is_pinned:
            return all(map(operator.ge, spare, need(block, self.leaves, self.chain)))
        if any(self.free.get(container, 0) < units for container, units in _pins(block)):
            return False
        return min(self._spare_with(block, 1)) >= 0

    def _with(self, block: Block, sign: int) -> Room:
        spare = self._spare_with(block, sign)
        if not block.is_pinned:
            return self._left(self.free, spare)
        free = dict(self.free)
        for container, units in _pins(block):
            free[container] -= sign * units
        return self._left(free, spare)

    def _left(self, free: Mapping[str, int], spare: Counters) -> Room:
        return Room(free, spare, leaves=self.leaves, cut=self.cut, chain=self.chain)

    def _spare_with(self, block: Block, sign: int) -> Counters:
        if not block.is_pinned:
            change = operator.sub if sign > 0 else operator.add
            return tuple(map(change, self.spare, need(block, self.leaves, self.chain)))
        # A pinned one also breaks larger blocks, by how much depends on its domain.
        spare = self.spare
        for container, units in _pins(block):
            cut, free = self.cut.get(container, ""), self.free[container]
            gain = _gain(cut, free, -sign * units, self.leaves, self.chain)
            spare = tuple(map(operator.add, spare, gain))
        return spare

    def _holds(self, container: str, free: int) -> Counters:
        return _held(self.cut.get(container, ""), free, self.leaves, self.chain)

    def _count(self) -> Counters:
        totals = [0] * (len(self.chain) + len(self.leaves))
        for container, free in self.free.items():
            for k, n in enumerate(self._holds(container, free)):
                totals[k] += n
        return tuple(totals)


@lru_cache(maxsize=4096)
def _held(cut: str, free: int, leaves: tuple[Leaf, ...], chain: Chain) -> Counters:
    """
    The number of blocks of each size that a container with `free` units fits; `cut`: see `Room`.
    """
    if cut == PARTS:
        parts = (free // leaf.size for leaf in leaves)
    elif cut:
        parts = (free if cut == leaf.name else 0 for leaf in leaves)
    else:
        parts = (free * leaf.per_gpu for leaf in leaves)
    gpus = free // PART_UNITS if cut == PARTS else 0 if cut else free
    return (*((gpus if size == 1 else 0) if cut else gpus // size for size in chain), *parts)


@lru_cache(maxsize=4096)
def _gain(cut: str, free: int, more: int, leaves: tuple[Leaf, ...], chain: Chain) -> Counters:
    """The number of blocks of each size that a container gains with `more` free units, or loses."""
    before = _held(cut, free, leaves, chain)
    after = _held(cut, free + more, leaves, chain)
    return tuple(map(operator.sub, after, before))


@lru_cache(maxsize=4096)  # a lot has few distinct blocks, and asks for each very often
def need(block: Block, leaves: tuple[Leaf, ...] = (), chain: Chain = CHAIN) -> Counters:
    """The units that a movable block takes from each counter."""
    if not block.share:
        sizes = [block.size] * block.count + list(block.rest)
        by_size = tuple(sum(s // size for s in sizes) for size in chain)
        return (*by_size, *(block.gpus * leaf.per_gpu for leaf in leaves))
    if not block.units:  # a MIG leaf is only itself
        return (*(0 for _ in chain), *(block.count * (leaf.name == block.share) for leaf in leaves))
    size = counted_as(block.units, leaves)
    whole = size == PART_UNITS  # which is a block of one
    parts = (-(-block.units // leaf.size) if leaf.size <= size else 0 for leaf in leaves)
    return (
        *(block.count * (whole and n == 1) for n in chain),
        *(block.count * n for n in parts),
    )


def counted_as(units: int, leaves: tuple[Leaf, ...]) -> int:
    """Return the size of the leaf that a part is counted as: the next one up, or a whole GPU."""
    return min((leaf.size for leaf in leaves if leaf.size >= units), default=PART_UNITS)


def _pins(block: Block) -> tuple[tuple[str, int], ...]:
    return block.seats or ((block.domain, block.size),)
