"""`Pool`: which devices are sold together, and the terms of their sale."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

# Long enough for any checkpoint; short enough that a device always comes back.
_DAY_SECONDS = 86_400

Seconds = Annotated[int, msgspec.Meta(ge=0, le=_DAY_SECONDS)]


SELL_BY = ("memory", "bidplane.dev/pcieLinkWidth")


class Clearing(enum.StrEnum):
    GREEDY = "greedy"
    EXACT = "exact"


class Divides(enum.StrEnum):
    """How small a part of a GPU is sold."""

    WHOLE = "whole"
    EIGHTHS = "eighths"  # halves, quarters and eighths beside whole GPUs
    MIG = "mig"  # the instances of `geometry` beside whole GPUs


class MigSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG instance of a geometry."""

    profile: str  # "3g.40gb"
    start: Annotated[int, msgspec.Meta(ge=0, le=7)]  # the first memory slice


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    product: str  # the `productName` attribute of the ResourceSlices' devices it sells
    floor_price: str = "0.10"  # credits per GPU-hour, the base price never falls below it
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
    divides: Divides = Divides.WHOLE
    # With `divides: mig`: how each GPU is cut. It changes only on GPUs of which nobody has a part.
    geometry: Annotated[list[MigSlot], msgspec.Meta(max_length=8)] = []
    # Into how many lots selectors may split it.
    max_lots: Annotated[int, msgspec.Meta(ge=1, le=16)] = 16
    # `exact` finds the best outcome of up to 64 bids for up to 64 GPUs; larger, it is greedy.
    clearing: Clearing = Clearing.GREEDY
    # Of the pool's GPUs, how much is kept for orders that cannot wait for a round.
    instant_float_percent: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    devices: int = 0
    leased: int = 0
    price: str = ""  # what one more GPU would have cost in the last round
    lots: int = 0
    message: str = ""  # what is wrong with its terms, if something is
