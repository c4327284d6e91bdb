"""
The values of `format` in a CRD's schema that a server checks, as upstream checks them.

A format it does not have is not checked, and creating the CRD warns of it.
"""

from __future__ import annotations

import binascii
import datetime
import email.utils
import ipaddress
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from bidplane.wire import names

_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(.\d+)?(z|[+-]\d\d:\d\d)", re.ASCII)
_GO_DURATION = re.compile(r"[+-]?(0|((\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_LOOSE_DURATION = re.compile(r"\d+\s*([A-Za-zµ]+)")
_EMAIL_LIMIT = 1000  # RFC 5321 allows 254
_LOOSE_LIMIT = 1000  # characters: digits without a unit are read again from each of them
_UNITS = ("ns", "us", "µs", "ms", "s", "m", "h", "d", "w", "wk", "hr")
_UNIT_STEMS = ("nano", "micro", "milli", "sec", "min", "hour", "day", "week")
_HOSTNAME = re.compile(r"[^\W_]([\w-]{0,61}[^\W_])?(\.[^\W_]([\w-]{0,61}[^\W_])?)*")
_RGB = re.compile(r"rgb\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)", re.ASCII)


def _matching(pattern: str, flags: int = re.ASCII) -> Callable[[str], bool]:
    compiled = re.compile(pattern, flags)
    return lambda text: compiled.fullmatch(text) is not None


def _byte(text: str) -> bool:
    try:
        return bool(text) and binascii.a2b_base64(text.encode("ascii"), strict_mode=True) != b""
    except ValueError:
        return False


def _date(text: str) -> bool:
    try:
        datetime.datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        return False
    return len(text) == 10


def _date_time(text: str) -> bool:
    day, _, clock = text.lower().partition("t")
    parts = _CLOCK.fullmatch(clock)
    if parts is None or not _date(day):
        return False
    return parts[1] <= "23" and parts[2] <= "59" and parts[3] <= "59"


def _duration(text: str) -> bool:
    if _GO_DURATION.fullmatch(text):
        return True
    units = [unit.lower() for unit in _LOOSE_DURATION.findall(text[:_LOOSE_LIMIT])]
    return any(unit in _UNITS or unit.startswith(_UNIT_STEMS) for unit in units)


def _email(text: str) -> bool:
    if len(text) > _EMAIL_LIMIT:
        return False
    address = email.utils.parseaddr(text)[1]
    local, at, domain = address.rpartition("@")
    return bool(at and local and domain) and " " not in address


def _hostname(text: str) -> bool:
    return len(text) <= 255 and _HOSTNAME.fullmatch(text) is not None


def _address(version: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            return ipaddress.ip_address(text).version == version
        except ValueError:
            return False

    return check


def _cidr(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return re.fullmatch(r"[^/]+/\d+", text, re.ASCII) is not None


def _uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return " " not in text and bool(parts.scheme or text.startswith("/"))


def _rgb(text: str) -> bool:
    parts = _RGB.fullmatch(text)
    return parts is not None and all(int(part) <= 255 for part in parts.groups())


def _isbn10(text: str) -> bool:
    digits = text.replace("-", "").replace(" ", "")
    if re.fullmatch(r"\d{9}[\dX]", digits, re.ASCII) is None:
        return False
    values = [10 if digit == "X" else int(digit) for digit in digits]
    return sum((10 - at) * value for at, value in enumerate(values)) % 11 == 0


def _isbn13(text: str) -> bool:
    digits = text.replace("-", "").replace(" ", "")
    if re.fullmatch(r"\d{13}", digits, re.ASCII) is None:
        return False
    return sum(int(digit) * (3 if at % 2 else 1) for at, digit in enumerate(digits)) % 10 == 0


def _card(text: str) -> bool:
    digits = [int(digit) for digit in re.sub(r"\D", "", text, flags=re.ASCII)]
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [2 * digit for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(n // 10 + n % 10 for n in doubled)) % 10 == 0


_HEX = "[0-9a-fA-F]"


def _uuid(third: str, fourth: str) -> Callable[[str], bool]:
    parts = (f"{_HEX}{{8}}", f"{_HEX}{{4}}", third, fourth, f"{_HEX}{{12}}")
    return _matching("-?".join(parts))


_MAC = rf"{_HEX}{{2}}([:-])({_HEX}{{2}}\1){{4,18}}{_HEX}{{2}}|({_HEX}{{4}}\.)+{_HEX}{{4}}"
_FOUR, _VARIANT = f"{_HEX}{{4}}", f"[89abAB]{_HEX}{{3}}"
_TEXT: Mapping[str, Callable[[str], bool]] = {
    "bsonobjectid": _matching(f"{_HEX}{{24}}"),
    "uri": _uri,
    "email": _email,
    "hostname": _hostname,
    "ipv4": _address(4),
    "ipv6": _address(6),
    "cidr": _cidr,
    "mac": _matching(_MAC),
    "uuid": _uuid(_FOUR, _FOUR),
    "uuid3": _uuid(f"3{_HEX}{{3}}", _FOUR),
    "uuid4": _uuid(f"4{_HEX}{{3}}", _VARIANT),
    "uuid5": _uuid(f"5{_HEX}{{3}}", _VARIANT),
    "isbn": lambda text: _isbn10(text) or _isbn13(text),
    "isbn10": _isbn10,
    "isbn13": _isbn13,
    "creditcard": _card,
    "ssn": _matching(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "hexcolor": _matching(f"#?({_HEX}{{3}}|{_HEX}{{6}})"),
    "rgbcolor": _rgb,
    "byte": _byte,
    "password": lambda text: True,
    "date": _date,
    "duration": _duration,
    "datetime": _date_time,
    "k8sshortname": lambda text: not names.label_problems(text),
    "k8slongname": lambda text: not names.subdomain_problems(text),
}
_FLOAT_LIMIT = 3.4028234663852886e38


def is_known(format_: str, type_: str) -> bool:
    """Return whether a schema's format is one that is checked."""
    if type_ == "integer":
        return format_ in ("int32", "int64")
    if type_ == "number":
        return format_ in ("float", "double")
    return type_ in ("", "string") and format_.replace("-", "") in _TEXT


def text_fits(format_: str, text: str) -> bool:
    """Return whether `text` has the format; one that is not known fits all."""
    check = _TEXT.get(format_.replace("-", ""))
    return check is None or check(text)


def number_fits(format_: str, number: float) -> bool:
    """Return whether `number` is in the range of the format."""
    if format_ == "int32":
        return -(2**31) <= number < 2**31
    return format_ != "float" or abs(number) <= _FLOAT_LIMIT
