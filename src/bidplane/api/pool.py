"""`Pool`: which devices are sold together, and the terms of their sale."""

from __future__ import annotations

import msgspec


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    product: str  # the `productName` attribute of the ResourceSlices' devices it sells
    floor_price: str = "0.10"  # credits per GPU-hour, the base price never falls below it
    notice_seconds: int = 30  # between an outbid lease's notice and its end
    restart_seconds: int = 30  # what a restart costs, for rank weight and compensation
    epoch_seconds: int = 60  # what a hold covers
    target_utilisation_percent: int = 92  # above it the base price rises


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    devices: int = 0
    leased: int = 0
    price: str = ""  # what one more GPU would have cost in the last round
