"""
Scalars of built-in kinds, decoded as strictly as Go decodes them.

A client that decodes into Go types fails on the whole list when one object in it has a time, a
base64 text or a number that its type cannot hold. So none is stored. Each decoder returns the
value as Go would write it again, or raises `Mistyped` with the message Go gives.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import functools
import re
from typing import Any

from bidplane.wire import quantity

_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_LAYOUT = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"
# The layout's elements, in order: how each is written in the layout, and what it must match.
_ELEMENTS = (
    ("2006", r"\d{4}"),
    ("-", "-"),
    ("01", r"\d\d"),
    ("-", "-"),
    ("02", r"\d\d"),
    ("T", "T"),
    ("15", r"\d\d"),
    (":", ":"),
    ("04", r"\d\d"),
    (":", ":"),
    ("05", r"\d\d"),
)
_ZONE = ("Z07:00", r"Z|[+-]\d\d:\d\d")
_RANGES = (("month", 1, 12), ("day", 1, 31), ("hour", 0, 23), ("minute", 0, 59), ("second", 0, 59))


class Mistyped(ValueError):
    """
    A value that its Go type cannot hold.

    `value` and `go_type` are set when Go's message also names the field; the walk that meets the
    error adds the struct and the path to it.
    """

    def __init__(self, message: str = "", *, value: str = "", go_type: str = "") -> None:
        super().__init__(message)
        self.message, self.value, self.go_type = message, value, go_type
        self.struct = ""
        self.path: list[str] = []

    def enter(self, struct: str, field: str) -> None:
        """Note that the value stands in `field` of `struct`; called from the inside out."""
        self.struct = self.struct or struct.rpartition(".")[2]
        self.path.insert(0, field)

    def __str__(self) -> str:
        if not self.go_type:
            return self.message
        target = (
            f"struct field {self.struct}.{'.'.join(self.path)} of type {self.go_type}"
            if self.struct
            else f"value of type {self.go_type}"
        )
        return f"json: cannot unmarshal {self.value} into Go {target}"


def json_name(value: Any) -> str:
    """Name the JSON type of `value` as Go's decoder does."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list | tuple) else "object"


def integer(value: Any, limits: tuple[int, int]) -> int:
    """Return an integer that fits its Go type."""
    if type(value) is int and limits[0] <= value <= limits[1]:
        return value
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    description = f"number {value}" if numeric else json_name(value)
    raise Mistyped(value=description, go_type="int32" if limits[1] < 2**32 else "int64")


def int_or_string(value: Any, limits: tuple[int, int]) -> int | str:
    """Return text, or an integer that fits 32 bits."""
    return value if isinstance(value, str) else integer(value, limits)


def quantity_text(value: Any) -> str:
    """Return a quantity in its canonical form."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Mistyped(quantity.RULE)
    try:
        return quantity.canonical(value)
    except ValueError as error:
        raise Mistyped(str(error)) from None


def base64_text(value: Any) -> str:
    """Return base64 in its canonical form."""
    if not isinstance(value, str):
        raise Mistyped(value=json_name(value), go_type="[]uint8")
    text = value.replace("\r", "").replace("\n", "")
    try:
        decoded = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:  # binascii.Error and UnicodeEncodeError are both
        raise Mistyped(f"illegal base64 data at input byte {_first_illegal(value)}") from None
    return base64.b64encode(decoded).decode()


_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


def _first_illegal(text: str) -> int:
    """Return the index that Go names: of the first byte that cannot stand where it does."""
    content = text.encode()
    digits = 0
    for at, byte in enumerate(content):
        if byte in b"\r\n":
            continue
        if byte == ord("="):
            padding = [i for i in range(at, len(content)) if content[i] not in b"\r\n"]
            padding_length = (4 - digits % 4) if digits % 4 >= 2 else 0
            if not padding_length:
                return at
            for i in padding[:padding_length]:
                if content[i] != ord("="):
                    return i
            return padding[padding_length] if len(padding) > padding_length else len(content)
        if byte not in _BASE64:
            return at
        digits += 1
    return len(content) - digits % 4  # the last quantum is not whole


def time(value: Any) -> str | None:
    """Return a time to the second, in UTC."""
    if not isinstance(value, str):
        raise Mistyped(value=json_name(value), go_type="string")
    return _time(value)


def micro_time(value: Any) -> str | None:
    """Return a time to the microsecond, in UTC."""
    if not isinstance(value, str):
        raise Mistyped(value=json_name(value), go_type="string")
    return _micro_time(value)


@functools.lru_cache(maxsize=1024)
def _time(text: str) -> str:
    moment, _ = _moment(text, _LAYOUT)
    if _PLAIN_TIME.fullmatch(text):
        return text
    return f"{moment.isoformat()}Z"


@functools.lru_cache(maxsize=1024)
def _micro_time(text: str) -> str:
    moment, fraction = _moment(text, _MICRO_LAYOUT)
    if len(fraction) != 6:
        rest = text[19:]
        raise Mistyped(f'parsing time "{text}" as "{_MICRO_LAYOUT}": {_rest(rest, ".000000")}')
    return f"{moment.isoformat()}.{fraction}Z"


def _rest(text: str, element: str) -> str:
    return f'cannot parse "{text}" as "{element}"'


def _moment(text: str, layout: str) -> tuple[datetime.datetime, str]:
    """Return the moment, to the second and in UTC, and the digits of its fraction."""
    parts = _TIME.fullmatch(text)
    if parts is None:
        raise Mistyped(f'parsing time "{text}" as "{layout}": {_unparsed(text)}')
    numbers = [int(part) for part in parts.group(2, 3, 4, 5, 6)]
    for (name, low, high), number in zip(_RANGES, numbers, strict=True):
        if not low <= number <= high:
            raise Mistyped(f'parsing time "{text}": {name} out of range')
    try:
        moment = datetime.datetime(int(parts[1]), *numbers)  # type: ignore[arg-type]
        if parts[8]:
            minutes = int(parts[9]) * 60 + int(parts[10])
            moment -= datetime.timedelta(minutes=minutes if parts[8] == "+" else -minutes)
    except (ValueError, OverflowError):
        raise Mistyped(f'parsing time "{text}": day out of range') from None
    return moment, parts[7] or ""


def _unparsed(text: str) -> str:
    """Return the error for the first element of the layout that a text lacks."""
    at = 0
    for name, pattern in _ELEMENTS:
        matched = re.compile(pattern, re.ASCII).match(text, at)
        if matched is None:
            return _rest(text[at:], name)
        at = matched.end()
    fraction = re.compile(r"[.,]\d+", re.ASCII).match(text, at)
    at = fraction.end() if fraction else at
    zone = re.compile(_ZONE[1], re.ASCII).match(text, at)
    if zone is None:
        return _rest(text[at:], _ZONE[0])
    return f'extra text: "{text[zone.end() :]}"'
