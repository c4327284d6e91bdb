"""`Pool`: which devices are sold together, and the terms of their sale."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from bidplane.api.money import LARGEST_PRICE, parse_price

# Long enough for any checkpoint; short enough that a device always comes back.
_DAY_SECONDS = 86_400

Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
MOST_TERM_SECONDS = 30 * _DAY_SECONDS
Seconds = Annotated[int, msgspec.Meta(ge=0, le=_DAY_SECONDS)]


# Memory, link width and kind of link: how many NVLinks join it to another, none of PCIe.
SELL_BY = ("memory", "bidplane.dev/pcieLinkWidth", "bidplane.dev/nvlinksPerPeer")

CHAIN = (8, 4, 2, 1)  # GPUs of a block, all in one link domain, unless a pool declares others
# The same as `core.chain.chain_problem`, for whoever serves the schema.
_CHAIN_RULES = [
    {
        "rule": "self.map(a, -a).isSorted() && self.all(a, self.exists_one(b, b == a))",
        "message": "name each size once, the largest first, as in [8, 4, 2, 1] or [3, 1]",
    },
    {
        "rule": "self.all(a, self.all(b, a > b || b % a == 0))",
        "message": "each size must divide the one before, as in [8, 4, 2, 1] or [3, 1]",
    },
    {
        "rule": "self[self.size() - 1] == 1",
        "message": "it must end in 1, so that every GPU can be sold by itself, as in [3, 1]",
    },
]
Chain = Annotated[
    list[Annotated[int, msgspec.Meta(ge=1, le=1024)]],
    msgspec.Meta(
        min_length=1,
        max_length=16,
        description="The sizes of the blocks it sells, each inside one link domain, the largest"
        " first. Each divides the one before, the last is 1: [3, 1] for boxes of three cards.",
        extra_json_schema={"x-kubernetes-validations": _CHAIN_RULES},
    ),
]


class ClearingMode(enum.StrEnum):
    GREEDY = "greedy"
    EXACT = "exact"


class Divides(enum.StrEnum):
    """The smallest parts of a GPU that a pool sells."""

    WHOLE = "whole"
    PARTS = "parts"  # parts of any size beside whole GPUs
    EIGHTHS = "eighths"  # the same, by the name that it had when only eighths were sold
    MIG = "mig"  # the instances of `geometry` beside whole GPUs


class MigSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG instance of a geometry."""

    profile: str  # "3g.40gb"
    start: Annotated[int, msgspec.Meta(ge=0, le=7)]  # the first memory slice


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    product: str  # the `productName` attribute of the ResourceSlices' devices it sells
    floor_price: str = "0.10"  # credits per GPU-hour, the base price never falls below it
    # Credits per GPU-hour. A bid that names no price offers its agent's priority times this;
    # "" is ten times the floor price. No price moves it.
    list_price: str = ""
    notice_seconds: Seconds = 30  # between an outbid lease's notice and its end
    restart_seconds: Seconds = 30  # what a restart costs, for rank weight and compensation
    heavy_restart_seconds: Seconds = 180  # the same for agents whose restart class is heavy
    epoch_seconds: Annotated[int, msgspec.Meta(ge=1, le=_DAY_SECONDS)] = 60  # what a hold covers
    # Above it the base price rises.
    target_utilisation_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 92
    # Devices are sold in one block only if they are equal in these attributes and capacities.
    sell_by: Annotated[list[str], msgspec.Meta(max_length=16)] = msgspec.field(
        default_factory=lambda: list(SELL_BY)
    )
    chain: Chain = msgspec.field(default_factory=lambda: list(CHAIN))
    divides: Divides = Divides.WHOLE
    # With `divides: mig`: how each GPU is cut. It changes only on GPUs of which nobody has a part.
    geometry: Annotated[list[MigSlot], msgspec.Meta(max_length=8)] = []
    # Into how many lots selectors may split it.
    max_lots: Annotated[int, msgspec.Meta(ge=1, le=16)] = 16
    # `exact` finds the best outcome of up to 64 bids for up to 64 GPUs; larger, it is greedy.
    clearing: ClearingMode = ClearingMode.GREEDY
    # A lease whose GPUs did nothing for so long ranks by its bid alone; 0: none ever does.
    idle_seconds: Seconds = 300
    # Of the pool's GPUs, how much is kept for orders that cannot wait for a round.
    instant_float_percent: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0
    # Bounds, in GPUs, rounded down and at least one: of the float, what one owner may buy in any
    # 60 s; of a lot, what may be under terms, and one owner's part of it.
    float_owner_percent: Percent = 25
    term_percent: Percent = 50
    term_owner_percent: Percent = 25
    longest_term_seconds: Annotated[int, msgspec.Meta(ge=0, le=MOST_TERM_SECONDS)] = 4 * 3600


# Without a list price of its own, a pool's is so many times its floor price.
LIST_PRICE_FLOORS = 10


def list_price(spec: PoolSpec) -> int:
    """Return a pool's list price in micro-credits. Raises ValueError for one that is no price."""
    if spec.list_price:
        return parse_price(spec.list_price)
    return min(LARGEST_PRICE, LIST_PRICE_FLOORS * parse_price(spec.floor_price))


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    devices: int = 0
    leased: int = 0
    price: str = ""  # what one more GPU would have cost in the last round
    lots: int = 0
    message: str = ""  # what is wrong with its terms, if something is
