"""
The division of GPUs for sale: the chain of block sizes, and the parts of one GPU.

Each size of a chain divides the one before. That makes counting exact where packing would be needed
otherwise (see `market.clearing.capacity`). Each pool says which sizes it sells; the default is
8|4|2|1. Below one GPU a pool sells parts of any size, or MIG instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import msgspec

from bidplane.api.money import GPU_WEIGHT
from bidplane.api.pool import CHAIN as CHAIN
from bidplane.api.shape import PART_UNITS, part_name, part_units
from bidplane.core.devices.ranges import WHOLE

Chain: TypeAlias = tuple[int, ...]  # block sizes, the largest first; each divides the one before
PARTS = "parts"  # the kind by which a GPU is counted that is sold in parts of any size


class Leaf(msgspec.Struct, frozen=True):
    """A part of a GPU that is sold by itself."""

    name: str  # "0.3", or a MIG profile
    per_gpu: int  # how many there are on one GPU
    weight: int  # of its price, of `GPU_WEIGHT`
    in_chain: bool = True  # of any size; a MIG profile stands alone
    starts: tuple[int, ...] = ()  # of a MIG profile: where on the GPU its instances begin
    span: int = 0  # of a MIG profile: how many memory slices one takes
    size: int = 0  # of a part that is no MIG instance: its units

    @property
    def kind(self) -> str:
        """The name that a cut GPU counts this leaf by: parts of any size are counted together."""
        return PARTS if self.in_chain else self.name

    @property
    def units(self) -> int:
        """The number of units of its kind that one instance takes."""
        return self.size if self.in_chain else 1

    def slots(self, places: Iterable[int]) -> tuple[int, ...]:
        """Return the memory slices that MIG instances which start at `places` occupy."""
        return tuple(at for start in places for at in range(start, start + self.span))


SLICES = 8  # memory slices of a GPU, which MIG instances are placed by
UNIT_WEIGHT = GPU_WEIGHT // PART_UNITS


def _part(units: int) -> Leaf:
    return Leaf(part_name(units), PART_UNITS // units, UNIT_WEIGHT * units, size=units)


# What a pool sells that divides its GPUs into parts: halves down to 32nds, and the least part. Each
# divides the one before. A part of another size is counted by these (`market.clearing.capacity`).
FRACTIONS = tuple(_part(PART_UNITS // per_gpu) for per_gpu in (2, 4, 8, 16, 32, 96))


@lru_cache(maxsize=4096)
def leaf_of(share: str, leaves: tuple[Leaf, ...]) -> Leaf | None:
    """Return the leaf that a share is, where these are sold; None if it is not sold."""
    units = part_units(share)
    if units is None:
        return next((leaf for leaf in leaves if leaf.name == share and not leaf.in_chain), None)
    if not any(leaf.in_chain for leaf in leaves):
        return None
    return _part(units)


def uncut(leaves: Iterable[Leaf]) -> dict[str, tuple[int, ...]]:
    """Return the free places, by kind, of a GPU that is about to be cut."""
    return {leaf.kind: WHOLE if leaf.in_chain else leaf.starts for leaf in leaves}


class Block(msgspec.Struct, frozen=True):
    """A unit of sale: whole GPUs in one link domain or several, or a share of one GPU."""

    size: int  # GPUs in one domain; 0 when it is a share of one GPU
    domain: str = ""  # "" is movable
    count: int = 1  # of movable blocks, or shares, of that size: a gang
    rest: tuple[int, ...] = ()  # further movable blocks, of other sizes
    share: str = ""  # the leaf it is
    seats: tuple[tuple[str, int], ...] = ()  # pinned in several containers: how much of each

    @property
    def units(self) -> int:
        """The size of a part, of `PART_UNITS`; 0 of a MIG instance and of whole GPUs."""
        return part_units(self.share) or 0 if self.share else 0

    @property
    def is_pinned(self) -> bool:
        return bool(self.domain or self.seats)

    @property
    def gpus(self) -> int:
        """The number of whole GPUs, in whatever domains they are."""
        return self.size * self.count + sum(self.rest)


def weight_of(block: Block, leaves: Iterable[Leaf]) -> int:
    """Return the part of a price per GPU-hour that a movable block costs."""
    if block.units:
        return UNIT_WEIGHT * block.units * block.count
    for leaf in leaves:
        if leaf.name == block.share:
            return leaf.weight * block.count
    return GPU_WEIGHT * block.gpus


def chain_problem(sizes: Sequence[int]) -> str | None:
    """
    Return why GPUs cannot be sold in blocks of these sizes, and what to write; None if they can.
    """
    if not sizes:
        return "it names no size; the least is [1]: every GPU by itself"
    for size in sizes:
        if size < 1:
            return f"{size} is no number of GPUs"
    for larger, size in pairwise(sizes):
        if size >= larger:
            descending = sorted({*sizes}, reverse=True)
            return (
                f"{larger} comes before {size}: name each size once, the largest first:"
                f" {descending}"
            )
        if larger % size:
            return (
                f"{size} does not divide {larger}: each size must divide the one before, as in"
                " [8, 4, 2, 1] or [3, 1]"
            )
    if sizes[-1] != 1:
        return f"it ends in {sizes[-1]}, and must end in 1: {[*sizes, 1]}"
    return None


def block_size(gpus: int, chain: Chain) -> int | None:
    """Return the size an ask is sold as: the next in the chain, or None above the largest."""
    return min((size for size in chain if size >= gpus), default=None)


def blocks_in(domains: Iterable[int], chain: Chain) -> dict[int, int]:
    """Return how many blocks of each size, largest first, fit domains of these numbers of GPUs."""
    sizes = list(domains)
    return {size: sum(n // size for n in sizes) for size in chain}


def anywhere(gpus: int, blocks: Mapping[int, int]) -> Block | None:
    """
    Return a block of `gpus` GPUs in any domains, in as few blocks as possible; None if too few.
    """
    sizes: list[int] = []
    for size, available in blocks.items():
        uncovered = available - sum(sizes) // size  # the larger blocks taken cover some of these
        count = min((gpus - sum(sizes)) // size, uncovered)
        sizes += [size] * count
    if sum(sizes) < gpus:
        return None
    count = sizes.count(sizes[0])
    return Block(sizes[0], count=count, rest=tuple(sizes[count:]))
