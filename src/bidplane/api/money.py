"""
Credits as people write them, micro-credits as the ledger keeps them.

Money is an integer number of micro-credits everywhere below the user's eye. A price is
micro-credits per GPU-hour, the unit people compare clouds by; because it is whole, a
price that was written comes back as it was written.
"""

from __future__ import annotations

import functools
import re

MICRO = 1_000_000
SECONDS_PER_HOUR = 3600
# What a lease pays of a price per GPU-hour is its weight, of which a whole GPU has so much: the
# units that parts are sold in, and MIG's eighths and sevenths, are all whole in it.
GPU_WEIGHT = 16_800
# The same when parts were eighths. What the ledger and its rounds wrote then is multiplied when it
# is read.
EARLIER_GPU_WEIGHT = 56
# These keep every stored amount, and every product of price, GPUs, seconds and rank weight,
# far inside 64 bits.
LARGEST_PRICE = 1_000_000 * MICRO
LARGEST_AMOUNT = 1_000_000_000 * MICRO  # in one wallet, one transfer, or one hourly grant
LARGEST_SUPPLY = 500_000_000_000 * MICRO  # that the mint has issued and not taken back

_CREDITS = re.compile(r"([0-9]+)(?:\.([0-9]{1,6}))?")
_MOST_DIGITS = 12  # before the point: more than the supply has
_SHOWN = 40  # characters of a wrong text in its refusal


class AmountTooLarge(ValueError):
    """A number of credits above the largest that may be written in its place."""


@functools.lru_cache(4096)  # the same few prices are read from every bid, each round
def parse_credits(text: str) -> int:
    """
    Parse credits: `"2.10"` → 2_100_000. Raises ValueError that says what is wrong with the text.
    """
    match = _CREDITS.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{_abbreviated(text)!r} is not an amount of credits: write digits with at most six"
            ' decimals, for example "2.10"'
        )
    integer, fraction = match.groups()
    if len(integer.lstrip("0")) > _MOST_DIGITS:
        raise _too_much(text)
    return int(integer) * MICRO + int((fraction or "").ljust(6, "0"))


def parse_amount(text: str) -> int:
    """An amount that a user names: as `parse_credits`, and no more than one wallet may have."""
    amount = parse_credits(text)
    if amount > LARGEST_AMOUNT:
        raise _too_much(text)
    return amount


def parse_price(text: str) -> int:
    """A price in credits per GPU-hour; more than zero, and not absurd."""
    try:
        price = parse_credits(text)
    except AmountTooLarge:
        price = LARGEST_PRICE + 1
    if price == 0:
        raise ValueError(f"{text!r} is not a price: it must be more than zero")
    if price > LARGEST_PRICE:
        raise AmountTooLarge(
            f"{_abbreviated(text)!r} is not a price: the largest price is"
            f" {format_credits(LARGEST_PRICE)}"
        )
    return price


def _too_much(text: str) -> AmountTooLarge:
    return AmountTooLarge(
        f"{_abbreviated(text)!r} credits is too much: the largest amount is"
        f" {format_credits(LARGEST_AMOUNT)}"
    )


def _abbreviated(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def format_credits(micro: int) -> str:
    """Write credits: 2_100_000 → `"2.10"`; at least two decimals, and never rounded."""
    sign = "-" if micro < 0 else ""
    integer, fraction = divmod(abs(micro), MICRO)
    digits = f"{fraction:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{integer}.{digits}"


def cost(price: int, gpus: int, seconds: int) -> int:
    """The cost of `gpus` for `seconds` at `price` per GPU-hour, rounded up to a micro-credit."""
    return -(-price * gpus * seconds // SECONDS_PER_HOUR)


def rent(price: int, weight: int, seconds: int) -> int:
    """The cost of `weight`, of `GPU_WEIGHT`, for `seconds` at `price` per GPU-hour, rounded up."""
    return -(-price * weight * seconds // (GPU_WEIGHT * SECONDS_PER_HOUR))
