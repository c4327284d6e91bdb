"""
The division of GPUs for sale: the chain of block sizes, and the parts of one GPU.

Each size of a chain divides the one before. That makes counting exact where packing would be needed
otherwise (see `market.room`). Each pool says which sizes it sells; the default is 8|4|2|1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

import msgspec

from bidplane.api.money import GPU_WEIGHT
from bidplane.api.pool import CHAIN as CHAIN

Chain: TypeAlias = tuple[int, ...]  # block sizes, the largest first; each divides the one before
EIGHTHS = "eighths"


class Leaf(msgspec.Struct, frozen=True):
    """A part of a GPU that is sold by itself."""

    name: str  # "1/2", or a MIG profile
    per_gpu: int  # how many there are on one GPU
    weight: int  # of its price, in 56ths of a GPU: eighths and sevenths are both whole
    in_chain: bool = True  # each divides the one before; a MIG profile stands alone
    starts: tuple[int, ...] = ()  # of a MIG profile: where on the GPU its instances begin
    span: int = 0  # of a MIG profile: how many memory slices one takes

    @property
    def kind(self) -> str:
        """The name that a cut GPU counts this leaf by: a chain's leaves all count as eighths."""
        return EIGHTHS if self.in_chain else self.name

    @property
    def units(self) -> int:
        """The number of units of its kind that one instance takes."""
        return UNITS // self.per_gpu if self.in_chain else 1

    def slots(self, places: Iterable[int]) -> tuple[int, ...]:
        """Return the eighths, or memory slices, that an instance at `places` occupies."""
        if self.in_chain:
            return tuple(places)
        return tuple(at for start in places for at in range(start, start + self.span))


UNITS = 8  # parts of one GPU that a lease can name: eighths, or MIG's memory slices
FRACTIONS = (Leaf("1/2", 2, 28), Leaf("1/4", 4, 14), Leaf("1/8", 8, 7))


def uncut(leaves: Iterable[Leaf]) -> dict[str, tuple[int, ...]]:
    """Return the free places, by kind, of a GPU that is about to be cut."""
    return {leaf.kind: tuple(range(UNITS)) if leaf.in_chain else leaf.starts for leaf in leaves}


class Block(msgspec.Struct, frozen=True):
    """A unit of sale: whole GPUs in one link domain or several, or a share of one GPU."""

    size: int  # GPUs in one domain; 0 when it is a share of one GPU
    domain: str = ""  # "" is movable
    count: int = 1  # of movable blocks, or shares, of that size: a gang
    rest: tuple[int, ...] = ()  # further movable blocks, of other sizes
    share: str = ""  # the leaf it is
    seats: tuple[tuple[str, int], ...] = ()  # pinned in several containers: how much of each

    @property
    def is_pinned(self) -> bool:
        return bool(self.domain or self.seats)

    @property
    def gpus(self) -> int:
        """The number of whole GPUs, in whatever domains they are."""
        return self.size * self.count + sum(self.rest)


def weight_of(block: Block, leaves: Iterable[Leaf]) -> int:
    """Return the part of a price per GPU-hour that a movable block costs, in 56ths."""
    for leaf in leaves:
        if leaf.name == block.share:
            return leaf.weight * block.count
    return GPU_WEIGHT * block.gpus


def fraction_share(text: str) -> str:
    """
    Return the share that a fraction of a GPU is sold as, rounded up: "1/2" for "0.5" and "0.3".

    Raises ValueError for text that is not a fraction of one GPU.
    """
    try:
        fraction = Fraction(text)
    except (ValueError, ZeroDivisionError):
        fraction = Fraction(0)
    if not 0 < fraction < 1:
        raise ValueError(f'{text!r} is not a fraction of a GPU: write one such as "0.5"')
    for leaf in reversed(FRACTIONS):
        if fraction <= Fraction(1, leaf.per_gpu):
            return leaf.name
    raise ValueError(
        f"{text!r} of a GPU is sold as a whole one: ask for 1 GPU, or for at most half"
    )


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
