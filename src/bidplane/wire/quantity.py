"""Quantities (`500m`, `1Gi`): parsed exactly, and written as kube-apiserver writes them."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

_FORM = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d+)?", re.ASCII
)
_LENGTH_LIMIT = 1024  # characters: arithmetic on more digits takes its time
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_EXPONENT = 1000  # a larger power would take for ever to compute
_LARGEST = 2**63 - 1  # upstream caps what has a binary suffix


@functools.lru_cache(maxsize=4096)
def parse(value: str | float) -> Fraction:
    """Return the number of a quantity; raises `ValueError` if it is invalid."""
    return _split(str(value))[0]


def _split(text: str) -> tuple[Fraction, str]:
    match = _FORM.fullmatch(text.strip()) if len(text) <= _LENGTH_LIMIT else None
    if match is None:
        raise ValueError(RULE)
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix in _BINARY and suffix:
        exact = number * 2 ** _BINARY[suffix]
        return max(Fraction(-_LARGEST), min(Fraction(_LARGEST), exact)), "binary"
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        exponent = int(suffix[1:])
        if exponent > _EXPONENT:
            raise ValueError(f"unable to parse quantity's suffix: {suffix} is past e{_EXPONENT}")
        # Smaller ones round up to a nano all the same.
        return number * Fraction(10) ** max(-_EXPONENT, exponent), "exponent"
    return number * Fraction(10) ** _DECIMAL[suffix], "decimal"


def of_bytes(number: int) -> str:
    """Return a number of bytes, exactly, in the largest unit (Ki, Mi, …) that divides it."""
    return canonical(f"{number // 1024}Ki") if number % 1024 == 0 else str(number)


@functools.lru_cache(maxsize=4096)
def canonical(value: str | float) -> str:
    """Return the shortest exact form with the largest suffix of the same family."""
    number, form = _split(str(value))
    # Finer than a nano is rounded up, away from zero, as upstream does.
    nano = number * 10**9
    if nano.denominator != 1:
        up = abs(nano).__ceil__()
        number = Fraction(up if nano > 0 else -up, 10**9)
    if number == 0:
        return "0"
    if form == "binary" and number.denominator == 1 and abs(number) >= 1024:
        suffix, power = max(
            ((s, p) for s, p in _BINARY.items() if number.numerator % 2**p == 0),
            key=lambda pair: pair[1],
        )
        return f"{number.numerator // 2**power}{suffix}"
    suffix, power = max(
        ((s, p) for s, p in _DECIMAL.items() if (number / Fraction(10) ** p).denominator == 1),
        key=lambda pair: pair[1],
    )
    mantissa = (number / Fraction(10) ** power).numerator
    if form == "exponent":
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{suffix}"
