"""
Limits on what a model may spend. Pure.

A call that spends names its price, its GPUs and its time, so the most it can cost is known before
it is made. That bound must fit the limit for one call; together with what the wallet paid in the
last hour, and what is promised to running calls, it must fit the limit for an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bidplane.api.http.exchange import StatementLine
from bidplane.api.money import cost, format_credits, parse_credits


class SpendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Spending limits in micro-credits; None is no limit but the wallet."""

    per_call: int | None = None
    per_hour: int | None = None
    price: int | None = None  # credits per GPU-hour


def bound(price: int, gpus: int, seconds: int) -> int:
    """The most that a call can cost."""
    return cost(price, gpus, seconds)


def paid_since(lines: Iterable[StatementLine], since: str) -> int:
    """The cost of leases since a time (RFC 3339, UTC), less compensation received."""
    total = 0
    for line in lines:
        if line.lease and line.at >= since:
            sign = -1 if not line.amount.startswith("-") else 1
            total += sign * parse_credits(line.amount.removeprefix("-"))
    return max(0, total)


def refusal(
    limits: SpendLimits, *, price: int, most: int, paid: int, promised: Mapping[str, int]
) -> str | None:
    """The reason why a call must not be made, or None."""
    if limits.price is not None and price > limits.price:
        return (
            f"{format_credits(price)} per GPU-hour is above the limit of"
            f" {format_credits(limits.price)} set for this server"
        )
    if limits.per_call is not None and most > limits.per_call:
        return (
            f"it could cost {format_credits(most)}, above the limit of"
            f" {format_credits(limits.per_call)} for one call: ask for fewer GPUs, less time,"
            " or a lower price"
        )
    if limits.per_hour is None:
        return None
    spent = paid + sum(promised.values())
    if spent + most > limits.per_hour:
        return (
            f"it could cost {format_credits(most)}, and {format_credits(spent)} of the"
            f" {format_credits(limits.per_hour)} for an hour are paid or promised: wait, or"
            " release something"
        )
    return None
