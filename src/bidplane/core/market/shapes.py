"""
The goods that a shape is sold as: the one place that decides on the fields of `api.shape.Shape`.

A lot sells blocks of its chain's sizes, shares of one GPU, and whole link domains where each of its
domains is one block. Whoever needs the size, the block or the weight of a shape asks here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.api.shape import LEAST_PART, PART_UNITS, Choice, Shape, part_name
from bidplane.core.devices.chain import Block, Chain, Leaf, anywhere, block_size, blocks_in, leaf_of
from bidplane.wire.quantity import parse

# The one constraint of a shape that a lot may be unable to keep.
CONSTRAINT_NOT_SOLD = (
    "wholeDomain: its link domains are not of one size, or none that it sells as a block; ask for a"
    " number of GPUs, or the pool's owner to add that size to its chain"
)


class Extent(NamedTuple):
    """The size of a lot when nobody leases any of it, and all of it is in service."""

    devices: int
    blocks: dict[int, int]  # by size of its chain: how many there are
    leaves: tuple[Leaf, ...]
    domain: int = 0  # the size of its domains, if each of them is one block
    memory: int = 0  # bytes of each GPU; 0 is not known

    @classmethod
    def of(
        cls, domains: Iterable[int], chain: Chain, leaves: tuple[Leaf, ...], memory: int = 0
    ) -> Extent:
        """Return the extent of domains with these numbers of GPUs."""
        sizes = list(domains)
        domain = _whole_domain(sizes, chain)
        return cls(sum(sizes), blocks_in(sizes, chain), leaves, domain, memory)

    @property
    def chain(self) -> Chain:
        return tuple(self.blocks)


def _whole_domain(domains: Iterable[int], chain: Chain) -> int:
    """Return the GPUs of a whole domain where every domain is one block of that size; else 0."""
    sizes = set(domains)
    return max(sizes) if len(sizes) == 1 and sizes <= set(chain) else 0


def constraint_problem(shape: Shape, extent: Extent) -> str | None:
    """Return why a lot of that extent cannot keep a constraint of the shape; None if it can."""
    return CONSTRAINT_NOT_SOLD if shape.whole_domain and not extent.domain else None


def share_in(shape: Shape, extent: Extent) -> str | BidReason:
    """
    Return the share that the shape is in a lot of that extent, "" for whole GPUs; or the reason it
    is not sold.
    """
    if not shape.memory:
        return shape.share
    amount = math.ceil(parse(shape.memory))
    if amount > extent.memory:
        return BidReason.SELECTS_NOTHING
    units = max(LEAST_PART, -(-amount * PART_UNITS // extent.memory))
    if any(leaf.in_chain for leaf in extent.leaves):
        return part_name(units) if units < PART_UNITS else ""
    return "" if 2 * units > PART_UNITS else BidReason.SHAPE_NOT_SOLD


def block_in(shape: Shape, extent: Extent) -> Block | BidReason:
    """
    Return the block that the shape is sold as in a lot of that extent; or the reason it is not
    sold.
    """
    share = share_in(shape, extent)
    if isinstance(share, BidReason):
        return share
    if share:
        leaf = leaf_of(share, extent.leaves)
        if leaf is None:
            return BidReason.SHAPE_NOT_SOLD
        return Block(0, share=leaf.name, count=shape.gpus * shape.blocks)
    if shape.spread:
        return anywhere(shape.gpus, extent.blocks) or BidReason.LARGER_THAN_EVERY_DOMAIN
    if constraint_problem(shape, extent):
        return BidReason.CONSTRAINT_NOT_SOLD
    # A block as large as every domain is all of one, wherever it is placed.
    size = block_size(shape.gpus, (extent.domain,) if shape.whole_domain else extent.chain)
    if size is None or shape.blocks > extent.blocks[size]:
        return BidReason.LARGER_THAN_EVERY_DOMAIN
    return Block(size, count=shape.blocks)


def gpus_of_block(shape: Shape, extent: Extent) -> int:
    """
    Return the GPUs of one block as it is sold, not spread and no share; where it is not sold, as
    many as it asks for.
    """
    size = extent.domain if shape.whole_domain else block_size(shape.gpus, extent.chain)
    return size or shape.gpus


def weight_in(shape: Shape, extent: Extent) -> int:
    """Return the weight of the shape in a lot; 0 of a share not sold there."""
    share = share_in(shape, extent)
    if isinstance(share, BidReason):
        return 0
    if share:
        leaf = leaf_of(share, extent.leaves)
        return leaf.weight * shape.gpus * shape.blocks if leaf is not None else 0
    if shape.spread:
        return GPU_WEIGHT * shape.gpus
    return GPU_WEIGHT * gpus_of_block(shape, extent) * shape.blocks


def is_sold_as(choice: Choice, gpus: int, chain_of: Callable[[str], Chain]) -> bool:
    """
    Return True if a choice is sold as so many GPUs, or shares, by the chains of its needs' pools.
    """
    if choice.whole_domain:
        return True  # however many its domain had
    total = 0
    for need in choice.needs:
        size = block_size(need.gpus, chain_of(need.pool)) or need.gpus
        total += (need.gpus if need.spread or need.is_part else size) * need.blocks
    return choice.sets * total == gpus


def sizes_sold(shape: Shape, chain: Chain, extents: Iterable[Extent]) -> set[int | None]:
    """
    Return the sizes that one block of the shape may have in a pool's lots. A block of a size that
    is sold no more still fits the shape that asks for exactly as much.
    """
    if shape.whole_domain:
        return {extent.domain for extent in extents}
    return {shape.gpus, None if shape.is_part or shape.spread else block_size(shape.gpus, chain)}
