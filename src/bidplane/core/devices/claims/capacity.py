"""
Consumable capacity: how much of a device a request takes.

A device that may be allocated several times publishes for each capacity which amounts can be
requested: a default, a range with steps, or a list. A request is rounded up to the next allowed
amount.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from bidplane.api.kinds import Object
from bidplane.core.devices.claims.model import ClaimError, Device
from bidplane.wire.quantity import parse

_MOST = 2**63 - 1  # upstream counts in int64
_NONE: Mapping[str, Fraction] = {}


def consumed(device: Device, requested: Mapping[str, Fraction]) -> dict[str, Fraction] | None:
    """
    Return how much of each capacity a request takes; None if the device lacks a requested one.

    Raises `ClaimError` for an amount that cannot be counted.
    """
    if any(name not in device.capacity for name in requested):
        return None
    return {
        name: _consumed_amount(name, requested.get(name), published)
        for name, published in device.capacity.items()
    }


def fits(
    device: Device,
    requested: Mapping[str, Fraction],
    *,
    used: Mapping[str, Fraction] = _NONE,
    pending: Mapping[str, Fraction] = _NONE,
) -> bool:
    """
    Return whether the device allows the requested amounts and has them left.

    `used` is what claims have; `pending` is what this search has assigned so far.
    """
    if not requested and not device.multiple:
        return True  # the request takes the whole device
    amounts = consumed(device, requested)
    if amounts is None:
        return False
    for name, published in device.capacity.items():
        amount = amounts[name]
        if _violates(amount, published.get("requestPolicy") or {}):
            return False
        total = amount + used.get(name, 0) + pending.get(name, 0)
        if total > parse(published["value"]):
            return False
    return True


def _consumed_amount(name: str, requested: Fraction | None, capacity: Object) -> Fraction:
    """Return how much of one capacity a request takes, rounded up by the capacity's policy."""
    policy = capacity.get("requestPolicy") or {}
    if requested is None:
        amount = parse(policy["default"] if policy.get("default") else capacity["value"])
    elif (policy.get("validRange") or {}).get("min") is not None:
        amount = _round_up(name, requested, policy["validRange"])
    else:
        # The list is in ascending order.
        fitting = (v for text in policy.get("validValues") or () if (v := parse(text)) >= requested)
        amount = next(fitting, requested)
    if amount < 0:
        raise ClaimError(f"capacity {name!r}: capacity value is negative")
    return amount


def _round_up(name: str, requested: Fraction, valid_range: Object) -> Fraction:
    least = parse(valid_range["min"])
    if requested < least:
        return least
    if not valid_range.get("step"):
        return requested
    unit = _unit(valid_range)
    units = requested / unit
    if unit == 1:
        units = Fraction(units.__ceil__())  # upstream reads whole numbers, rounded up
    if units > _MOST or units.denominator != 1:
        raise ClaimError(f"capacity {name!r}: {requested} cannot be counted in the device's steps")
    step = parse(valid_range["step"])
    steps = ((units * unit - least) / step).__ceil__()
    rounded = least + steps * step
    if rounded / unit > _MOST:
        raise ClaimError(f"capacity {name!r}: rounding {requested} up passes what can be counted")
    return rounded


def _unit(valid_range: Object) -> Fraction:
    """Return the unit to count in: a thousandth if the range is whole in it, else 1."""
    bounds = [parse(valid_range[key]) for key in ("min", "max", "step") if valid_range.get(key)]
    thousandths = [bound * 1000 for bound in bounds]
    if all(t.denominator == 1 and t <= _MOST for t in thousandths) and thousandths[-1] >= 1:
        return Fraction(1, 1000)
    return Fraction(1)


def _violates(amount: Fraction, policy: Object) -> bool:
    """Return whether a capacity's policy forbids an amount."""
    if policy.get("default") and amount == parse(policy["default"]):
        return False
    valid_range = policy.get("validRange")
    if valid_range:
        if valid_range.get("max") and amount > parse(valid_range["max"]):
            return True
        if valid_range.get("step"):
            steps = (amount - parse(valid_range["min"])) / parse(valid_range["step"])
            return steps.denominator != 1
        return False
    values = [parse(text) for text in policy.get("validValues") or ()]
    return bool(values) and amount not in values


def written(amount: Fraction, device: Device, name: str) -> str:
    """
    Return the amount as a quantity, in the family of suffixes that the capacity is published in.
    """
    value = str(device.capacity[name]["value"])
    if value.endswith("i") and amount.denominator == 1 and amount >= 1024:
        whole = amount.numerator
        power = max(p for p in range(7) if whole % 1024**p == 0)
        return f"{whole // 1024**power}{('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei')[power]}"
    if amount.denominator == 1:
        return str(amount.numerator)
    return f"{(amount * 1000).__ceil__()}m"
