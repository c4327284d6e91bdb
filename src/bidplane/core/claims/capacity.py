"""
Consumable capacity: how much of a device a request takes.

A device that may be allocated several times says for each capacity what can be asked of it: a
default, a range with steps, or a list. What is asked is rounded up to the next thing allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from bidplane.api.kinds import Object
from bidplane.core.claims.model import ClaimError, Device
from bidplane.wire.quantity import parse

_MOST = 2**63 - 1  # upstream counts in int64
_NONE: Mapping[str, Fraction] = {}


def consumed(device: Device, asked: Mapping[str, Fraction]) -> dict[str, Fraction] | None:
    """
    What a request that asks for so much takes of each capacity; None if the device has no such
    capacity. Raises `ClaimError` for an amount that cannot be counted.
    """
    if any(name not in device.capacity for name in asked):
        return None
    return {name: _consumed(name, asked.get(name), one) for name, one in device.capacity.items()}


def fits(
    device: Device,
    asked: Mapping[str, Fraction],
    *,
    used: Mapping[str, Fraction] = _NONE,
    more: Mapping[str, Fraction] = _NONE,
) -> bool:
    """Whether that much is allowed, and left beside what is `used` and `more` is about to be."""
    if not asked and not device.multiple:
        return True  # all of it
    taking = consumed(device, asked)
    if taking is None:
        return False
    for name, one in device.capacity.items():
        amount = taking[name]
        if _violates(amount, one.get("requestPolicy") or {}):
            return False
        total = amount + used.get(name, 0) + more.get(name, 0)
        if total > parse(one["value"]):
            return False
    return True


def _consumed(name: str, asked: Fraction | None, capacity: Object) -> Fraction:
    policy = capacity.get("requestPolicy") or {}
    if asked is None:
        amount = parse(policy["default"] if policy.get("default") else capacity["value"])
    elif (policy.get("validRange") or {}).get("min") is not None:
        amount = _round_up(name, asked, policy["validRange"])
    else:
        # The list is in ascending order.
        fitting = (v for text in policy.get("validValues") or () if (v := parse(text)) >= asked)
        amount = next(fitting, asked)
    if amount < 0:
        raise ClaimError(f"capacity {name!r}: capacity value is negative")
    return amount


def _round_up(name: str, asked: Fraction, allowed: Object) -> Fraction:
    least = parse(allowed["min"])
    if asked < least:
        return least
    if not allowed.get("step"):
        return asked
    unit = _unit(allowed)
    whole = asked / unit
    if unit == 1:
        whole = Fraction(whole.__ceil__())  # upstream reads whole numbers, rounded up
    if whole > _MOST or whole.denominator != 1:
        raise ClaimError(f"capacity {name!r}: {asked} cannot be counted in the device's steps")
    step = parse(allowed["step"])
    steps = ((whole * unit - least) / step).__ceil__()
    rounded = least + steps * step
    if rounded / unit > _MOST:
        raise ClaimError(f"capacity {name!r}: rounding {asked} up passes what can be counted")
    return rounded


def _unit(allowed: Object) -> Fraction:
    """Thousandths, where the range can be counted in them; else ones."""
    bounds = [parse(allowed[key]) for key in ("min", "max", "step") if allowed.get(key)]
    thousandths = [bound * 1000 for bound in bounds]
    if all(t.denominator == 1 and t <= _MOST for t in thousandths) and thousandths[-1] >= 1:
        return Fraction(1, 1000)
    return Fraction(1)


def _violates(amount: Fraction, policy: Object) -> bool:
    if policy.get("default") and amount == parse(policy["default"]):
        return False
    allowed = policy.get("validRange")
    if allowed:
        if allowed.get("max") and amount > parse(allowed["max"]):
            return True
        if allowed.get("step"):
            steps = (amount - parse(allowed["min"])) / parse(allowed["step"])
            return steps.denominator != 1
        return False
    values = [parse(text) for text in policy.get("validValues") or ()]
    return bool(values) and amount not in values


def written(amount: Fraction, device: Device, name: str) -> str:
    """The amount, in the family of suffixes the capacity is published in."""
    value = str(device.capacity[name]["value"])
    if value.endswith("i") and amount.denominator == 1 and amount >= 1024:
        whole = amount.numerator
        power = max(p for p in range(7) if whole % 1024**p == 0)
        return f"{whole // 1024**power}{('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei')[power]}"
    if amount.denominator == 1:
        return str(amount.numerator)
    return f"{(amount * 1000).__ceil__()}m"
