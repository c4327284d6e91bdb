"""
Kubernetes' own functions for CEL: quantities, versions, lists, sets, and text.

The library allows no types of our own, so a quantity and a version are maps with a tag. The
functions that both have (`isGreaterThan`, `compareTo`, …) look at the tag, and never compare two
values with different tags.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from cel_expr_python import cel as _cel  # type: ignore[import-untyped]

from bidplane.core.cel import addresses
from bidplane.wire import quantity as quantities
from bidplane.wire import regex

QUANTITY, SEMVER = "kubernetes.quantity", "kubernetes.semver"

Tagged = dict[str, str]

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_LARGEST = 2**64 - 1  # a part of a version, upstream's uint64


def quantity(text: str) -> Tagged:
    return as_quantity(quantities.parse(text))


def as_quantity(value: Fraction) -> Tagged:
    return {
        "type": QUANTITY,
        "numerator": str(value.numerator),
        "denominator": str(value.denominator),
    }


def semver(text: str) -> Tagged:
    """Return a parsed version without its build metadata, which does not affect equality."""
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version, such as 1.2.3")
    major, minor, patch, before = match.group(1, 2, 3, 4)
    if max(map(int, (major, minor, patch))) > _LARGEST:
        raise ValueError(f"{text!r}: a part of the version is too large")
    for part in (before or "").split("."):
        if part.isdigit() and len(part) > 1 and part.startswith("0"):
            raise ValueError(f"{text!r}: a number in a pre-release has no leading zero")
    return {"type": SEMVER, "major": major, "minor": minor, "patch": patch, "pre": before or ""}


def lenient_semver(text: str, normalize: bool) -> Tagged:
    """Parse a version; `normalize` first corrects a leading v, missing parts, leading zeros."""
    if not normalize:
        return semver(text)
    text = text.removeprefix("v")
    core = re.match(r"[^-+]*", text)
    numbers = core.group(0) if core else ""
    parts = [part.lstrip("0") or "0" for part in numbers.split(".")]
    if len(parts) < 3:
        if text != numbers:
            raise ValueError("Short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return semver(".".join(parts) + text[len(numbers) :])


def _number(value: Any) -> Fraction:
    if isinstance(value, Mapping) and value.get("type") == QUANTITY:
        return Fraction(int(value["numerator"]), int(value["denominator"]))
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    raise ValueError("not a quantity")


def _version(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Mapping) or value.get("type") != SEMVER:
        raise ValueError("not a semantic version")
    before = value["pre"]
    # None before anything is a release, which comes after its pre-releases.
    rank = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in before.split(".") if before]
    return (*(int(value[part]) for part in ("major", "minor", "patch")), not before, rank)


def _is(parse: Callable[..., Any]) -> Callable[..., bool]:
    def check(*args: Any) -> bool:
        try:
            parse(*args)
        except ValueError:
            return False
        return True

    return check


def _compare(first: Any, second: Any) -> int:
    if isinstance(first, Mapping) and first.get("type") == SEMVER:
        v, w = _version(first), _version(second)
        return (v > w) - (v < w)
    a, b = _number(first), _number(second)
    return (a > b) - (a < b)


def _is_greater(first: Any, second: Any) -> bool:
    return _compare(first, second) > 0


def _is_less(first: Any, second: Any) -> bool:
    return _compare(first, second) < 0


def _add(first: Any, second: Any) -> Tagged:
    return as_quantity(_number(first) + _number(second))


def _subtract(first: Any, second: Any) -> Tagged:
    return as_quantity(_number(first) - _number(second))


def _as_integer(value: Any) -> int:
    number = _number(value)
    if number.denominator != 1:
        raise ValueError("cannot convert value to integer")
    return number.numerator


def _part(name: str) -> Callable[[Any], int]:
    places = ("major", "minor", "patch")
    return lambda version: int(_version(version)[places.index(name)])


def _find(text: str, pattern: str) -> str:
    return regex.compile(pattern).find(text)


def _find_all(text: str, pattern: str) -> list[str]:
    return regex.compile(pattern).find_all(text)


def _find_some(text: str, pattern: str, most: int) -> list[str]:
    matches = _find_all(text, pattern)
    return matches if most < 0 else matches[:most]


def _sorted(items: Sequence[Any]) -> bool:
    return all(previous <= following for previous, following in itertools.pairwise(items))


def _equal(first: Any, second: Any) -> bool:
    """Compare as CEL does: true is not 1."""
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


def _includes(items: Sequence[Any], value: Any) -> bool:
    return any(_equal(item, value) for item in items)


def _contains(items: Sequence[Any], subset: Sequence[Any]) -> bool:
    return all(_includes(items, value) for value in subset)


def _equivalent(items: Sequence[Any], other_items: Sequence[Any]) -> bool:
    return _contains(items, other_items) and _contains(other_items, items)


def _intersects(items: Sequence[Any], other_items: Sequence[Any]) -> bool:
    return any(_includes(items, value) for value in other_items)


@functools.cache
def functions() -> list[Any]:
    kinds = _cel.Type
    many, dyn, text = kinds.List(kinds.DYN), kinds.DYN, kinds.STRING
    tagged = kinds.Map(kinds.STRING, kinds.STRING)

    def declare(name: str, *overloads: tuple[Any, list[Any], bool, Any]) -> Any:
        return _cel.FunctionDecl(
            name,
            [
                _cel.Overload(
                    id=f"bidplane_{name.replace('.', '_')}_{at}",
                    return_type=returned,
                    parameters=parameters,
                    is_member=member,
                    impl=impl,
                )
                for at, (returned, parameters, member, impl) in enumerate(overloads)
            ],
        )

    def member(name: str, returned: Any, impl: Any, *parameters: Any) -> Any:
        return declare(name, (returned, [*parameters], True, impl))

    def plain(name: str, returned: Any, impl: Any, *parameters: Any) -> Any:
        return declare(name, (returned, [*parameters], False, impl))

    return [
        member("isSorted", kinds.BOOL, _sorted, many),
        member("sum", dyn, sum, many),
        member("min", dyn, min, many),
        member("max", dyn, max, many),
        declare(
            "includes",  # the library takes no value of any type: each is named
            *(
                (kinds.BOOL, [many, kind], True, _includes)
                for kind in (kinds.INT, kinds.STRING, kinds.BOOL, kinds.DOUBLE, tagged)
            ),
        ),
        plain("sets.contains", kinds.BOOL, _contains, many, many),
        plain("sets.equivalent", kinds.BOOL, _equivalent, many, many),
        plain("sets.intersects", kinds.BOOL, _intersects, many, many),
        member("find", text, _find, text, text),
        declare(
            "findAll",
            (kinds.List(text), [text, text], True, _find_all),
            (kinds.List(text), [text, text, kinds.INT], True, _find_some),
        ),
        plain("isQuantity", kinds.BOOL, _is(quantities.parse), text),
        plain("quantity", tagged, quantity, text),
        member("isInteger", kinds.BOOL, lambda q: _number(q).denominator == 1, tagged),
        member("asInteger", kinds.INT, _as_integer, tagged),
        member("asApproximateFloat", kinds.DOUBLE, lambda q: float(_number(q)), tagged),
        member("sign", kinds.INT, lambda q: _compare(q, 0), tagged),
        member("compareTo", kinds.INT, _compare, tagged, tagged),
        member("isGreaterThan", kinds.BOOL, _is_greater, tagged, tagged),
        member("isLessThan", kinds.BOOL, _is_less, tagged, tagged),
        declare(
            "add",
            (tagged, [tagged, tagged], True, _add),
            (tagged, [tagged, kinds.INT], True, _add),
        ),
        declare(
            "sub",
            (tagged, [tagged, tagged], True, _subtract),
            (tagged, [tagged, kinds.INT], True, _subtract),
        ),
        declare(
            "semver",
            (tagged, [text], False, semver),
            (tagged, [text, kinds.BOOL], False, lenient_semver),
        ),
        declare(
            "isSemver",
            (kinds.BOOL, [text], False, _is(semver)),
            (kinds.BOOL, [text, kinds.BOOL], False, _is(lenient_semver)),
        ),
        *(member(part, kinds.INT, _part(part), tagged) for part in ("major", "minor", "patch")),
        *(declare(name, *overloads) for name, overloads in addresses.overloads(kinds, tagged)),
    ]
