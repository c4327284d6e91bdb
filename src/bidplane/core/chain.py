"""
How GPUs are cut for sale: the chain of block sizes, and the parts of one GPU.

Each size of the chain divides the one before. That is what makes counting exact where
packing would be needed otherwise (see `market.room`).
"""

from __future__ import annotations

import msgspec

CHAIN = (8, 4, 2, 1)  # GPUs of a block, all in one link domain
EIGHTHS = "eighths"


class Leaf(msgspec.Struct, frozen=True):
    """A part of a GPU that is sold by itself."""

    name: str  # "1/2", or a MIG profile
    per_gpu: int  # how many there are on one GPU
    weight: int  # of its price, in 56ths of a GPU: eighths and sevenths are both whole
    in_chain: bool = True  # each divides the one before; a MIG profile stands alone


GPU_WEIGHT = 56
FRACTIONS = (Leaf("1/2", 2, 28), Leaf("1/4", 4, 14), Leaf("1/8", 8, 7))


class Block(msgspec.Struct, frozen=True):
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
        """Whole GPUs, wherever they are."""
        return self.size * self.count + sum(self.rest)


def block_size(gpus: int) -> int | None:
    """The block an ask is sold as: the next size of the chain, or None above the largest."""
    return min((size for size in CHAIN if size >= gpus), default=None)


def anywhere(gpus: int) -> Block:
    """So many GPUs wherever they are: as few blocks as their binary form has."""
    rest = tuple(size for size in CHAIN[1:] if gpus % CHAIN[0] & size)
    if gpus >= CHAIN[0]:
        return Block(CHAIN[0], count=gpus // CHAIN[0], rest=rest)
    return Block(rest[0], rest=rest[1:])
