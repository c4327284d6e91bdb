"""
`Shape`: GPUs as the market sells them, and what a bid says about which devices will do.

A field of a shape is declared here, once. The Bid's schema, its alternatives and joint needs, the
exchange's view of a bid and the market's ask all inherit it; `core/market/shapes` decides what is
sold for it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import msgspec

MOST_GPUS = 1024
MOST_BLOCKS = 128

# A part of a GPU is sold in units of which a GPU has so many: hundredths, thirds, and halves down
# to 32nds are whole in them, so that what people write is what they get and pay for.
PART_UNITS = 2400
LEAST_PART = PART_UNITS // 100  # a GPU is shared by at most a hundred


@functools.lru_cache(4096)
def part_units(share: str) -> int | None:
    """
    Return the units of a GPU that a share is, rounded up: 720 for "0.3", 300 for "1/8".

    None for a MIG profile, and for anything else that is no part of one GPU.
    """
    try:
        fraction = Fraction(share)
    except (ValueError, ZeroDivisionError):
        return None
    units = math.ceil(fraction * PART_UNITS)
    return units if LEAST_PART <= units < PART_UNITS else None


@functools.lru_cache(4096)
def part_name(units: int) -> str:
    """Return the name of a part of so many units, with as few decimals as it needs: "0.3"."""
    for digits in range(1, 5):
        decimals = units * 10**digits // PART_UNITS
        if -(-decimals * PART_UNITS // 10**digits) == units:
            return f"0.{decimals:0{digits}d}"
    raise ValueError(f"{units} of {PART_UNITS} units need more than 4 decimals")


def share_name(share: str) -> str:
    """Return the name by which a share is sold: "0.5" for "1/2"; a MIG profile's is its own."""
    units = part_units(share)
    return share if units is None else part_name(units)


def parse_fraction(text: str) -> str:
    """
    Return the share that a fraction of a GPU is sold as: "0.3" for "0.3", "0.25" for "1/4".

    Raises ValueError, which says what is wrong, for text that is no part of one GPU.
    """
    units = part_units(text)
    if units is None:
        raise ValueError(
            f"{text!r} is not a part of a GPU: it must be at least {part_name(LEAST_PART)} and less"
            ' than 1, such as "0.3"; for a whole GPU set nvidia.com/gpu: 1'
        )
    return part_name(units)


class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """GPUs of one kind: how many, and how close to each other."""

    gpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]
    # A gang: so many blocks of `gpus`, each in one link domain, all of them or none.
    blocks: Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCKS)] = 1
    spread: bool = False  # the GPUs need not be in one link domain
    # All GPUs of one link domain, however many those are; `gpus` is the least.
    whole_domain: bool = False
    share: str = ""  # a part of one GPU instead: "0.3", "1/8", or a MIG profile
    # Or as much of one GPU as has so much of its memory: "20Gi". It may be all of a GPU.
    memory: str = ""

    @property
    def count(self) -> int:
        """The number of GPUs, or shares; 0 of whole domains, which are as large as they are."""
        return 0 if self.whole_domain else self.gpus * self.blocks

    @property
    def is_part(self) -> bool:
        """True for a part of one GPU; one with an amount of memory may come to all of it."""
        return bool(self.share or self.memory)

    @property
    def is_single(self) -> bool:
        """True for one GPU, or one share."""
        return self.count == 1


class Need(Shape, frozen=True, kw_only=True, rename="camel"):
    """A shape, and which devices will do for it."""

    pool: str = ""  # "" lets the exchange choose
    selector: str = ""  # CEL over `device`, as in a DRA request: which devices will do
    # Attributes in which all devices of a block must be equal.
    match_attribute: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)] = ()
    distinct_attribute: str = ""  # one in which all must differ; no pool sells that


class BidNeed(Need, frozen=True, kw_only=True, rename="camel"):
    """A further need: won with the others or not at all, at the same price per GPU-hour."""

    # Sold by themselves only, so the schema does not offer them here.
    NOT_SERVED: ClassVar[tuple[str, ...]] = (
        "whole_domain",
        "share",
        "memory",
        "distinct_attribute",
    )


class Choice(Need, frozen=True, kw_only=True, rename="camel"):
    """One way to serve a bid: a need, and the further needs that are won with it or not at all."""

    # And these, of the same pool or others: one bid, one price, one lease, all or none.
    also: Annotated[tuple[BidNeed, ...], msgspec.Meta(max_length=7)] = ()
    # All of it in one machine, as a pod needs it; `blocks` is then how many such sets.
    one_node: bool = False

    @property
    def is_joint(self) -> bool:
        return bool(self.also) or self.one_node

    @property
    def sets(self) -> int:
        """The number of sets of all its needs."""
        return self.blocks if self.one_node else 1

    @property
    def needs(self) -> tuple[Need, ...]:
        """Its needs, all or none; of a choice of sets, those of one set."""
        if not self.one_node:
            return (self, *self.also)
        return (msgspec.structs.replace(self, blocks=1), *self.also)

    @property
    def asked(self) -> int:
        """The number of GPUs, or shares, in all; of whole domains, the least."""
        if self.one_node:
            return self.blocks * (self.gpus + sum(need.gpus * need.blocks for need in self.also))
        return self.gpus * self.blocks + sum(need.gpus * need.blocks for need in self.also)

    def problems(self, field: str) -> Iterator[str]:
        """Yield a sentence for each combination of fields that no pool could sell."""
        part = self.share or self.memory
        if self.share and self.memory:
            yield f"{field}: share and memory both say which part of a GPU: set one of them"
        if self.memory and not _is_memory(self.memory):
            yield f'{field}.memory: {self.memory!r} is not an amount of memory, such as "20Gi"'
        if part and (self.gpus != 1 or self.spread):
            yield (
                f"{field}: a bid for {part!r} is for one part of one GPU: set gpus to 1,"
                " and blocks for several"
            )
        if self.whole_domain and (part or self.spread or self.also or self.one_node):
            yield (
                f"{field}: wholeDomain asks for a whole link domain: remove share, memory, spread,"
                " also and oneNode"
            )
        if part and (self.also or self.one_node):
            yield (
                f"{field}: {part!r} is a part of a GPU, which is sold by itself: bid for it"
                " alone, without also and oneNode"
            )
        if self.one_node and any(need.blocks > 1 for need in self.also):
            yield (
                f"{field}: with oneNode, blocks counts sets of everything the bid asks for: set it"
                " once, not in also"
            )


_MEMORY = re.compile(r"[1-9][0-9]{0,17}(Ki|Mi|Gi|Ti|k|M|G|T)?")


def _is_memory(text: str) -> bool:
    return _MEMORY.fullmatch(text) is not None


def fields_of(kind: type[msgspec.Struct], value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of `value` that `kind` declares, by name, to make another struct of."""
    return {name: getattr(value, name) for name in kind.__struct_fields__}
