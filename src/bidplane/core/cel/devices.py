"""
Device selectors: one expression, evaluated on one device at a time.

`device.attributes` is a map of maps. Upstream's outer map returns an empty map for an unknown
domain, and `false` for `"domain" in device.attributes`; the library's maps cannot do both. So
every domain that an expression could name is added before a lookup, and an expression that tests
*whether* a domain exists gets the map as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from bidplane.core import cel
from bidplane.core.cel import CelError
from bidplane.core.cel.functions import quantity, semver

SOURCE_LIMIT = 10 << 10  # bytes: CELSelectorExpressionMaxLength

_TEXT = re.compile(r"""[rR]?("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')""")
_FIELD = re.compile(r"(?<![\w.])device\s*\.\s*(\w+)")
# A use of the map itself, not of an entry: all but `device.attributes["domain"]` and `.domain`.
_WHOLE_MAP = re.compile(
    r"(?<![\w.])device\s*\.\s*(attributes|capacity)\b"
    r"(?!\s*\[)(?!\s*\.\s*\??\s*(?!(?:all|exists|exists_one|existsOne|map|filter)\s*\()\w)"
)
_INDEX = re.compile(r"\[\s*(?:\?\s*)?")
_PLAIN_INDEX = re.compile(r"""\[\s*(?:\?\s*)?(?:"\s*"|device\s*\.\s*driver)\s*\]""")
_FIELDS = ("driver", "attributes", "capacity", "allowMultipleAllocations")

Values = Mapping[str, Mapping[str, Any]]  # by domain, by name


class DeviceSelector:
    """A compiled selector."""

    __slots__ = ("_identifiers", "_literals", "_program", "source")

    def __init__(self, source: str, program: cel.CelProgram, names_are_plain: bool) -> None:
        self.source, self._program = source, program
        self._literals = tuple({text[1:-1] for text in _TEXT.findall(source)})
        identifiers = program.words | set(self._literals)
        self._identifiers: frozenset[str] | None = (
            frozenset(identifiers) if names_are_plain else None
        )

    def matches(self, driver: str, multiple: bool, attributes: Values, capacity: Values) -> bool:
        """Return true if the selector selects the device; raises `CelError`."""
        device = {
            "driver": driver,
            "allowMultipleAllocations": multiple,
            "attributes": self._filled(attributes, driver),
            "capacity": self._filled(capacity, driver),
        }
        selected = self._program.evaluate(
            {"device": device, "attributes_": attributes, "capacity_": capacity}
        )
        return bool(selected)

    def _filled(self, values: Values, driver: str) -> Values:
        missing: Values = {text: {} for text in (*self._literals, driver) if text not in values}
        return {**missing, **values} if missing else values

    def depends_on(self, name: str) -> bool:
        """Return true if an attribute or domain of that name may change the result."""
        return self._identifiers is None or name in self._identifiers


@functools.lru_cache(maxsize=4096)
def compile(source: str) -> DeviceSelector:
    """Compile a selector; raises `CelError` if it is invalid."""
    if len(source.encode()) > SOURCE_LIMIT:
        raise CelError(f"the expression is longer than {SOURCE_LIMIT} bytes")
    bare = cel.without_text(source)
    for field in _FIELD.findall(bare):
        if field not in _FIELDS:
            raise CelError(f"undefined field 'device.{field}': there are {', '.join(_FIELDS)}")
    whole = [(m.start(), m.end(), m[1]) for m in _WHOLE_MAP.finditer(bare)]
    rewritten = source
    for start, end, field in reversed(whole):
        rewritten = f"{rewritten[:start]}{field}_{rewritten[end:]}"
    program = cel.compile(rewritten, ("device", "attributes_", "capacity_"))
    plain = len(_PLAIN_INDEX.findall(bare)) == len(_INDEX.findall(bare))
    plain &= not re.search(r"""\\|\"{3}|'{3}""", source)
    loops = bool(re.search(r"\.\s*(all|exists|exists_one|existsOne|map|filter)\s*\(", bare))
    only_in = all(re.search(r"\bin\s+$", bare[:start]) for start, _, _ in whole)
    return DeviceSelector(source, program, plain and not loops and only_in)


def values_of(items: Mapping[str, Any], driver: str, read: Any) -> dict[str, dict[str, Any]]:
    """Return attributes or capacities by domain and name; the driver is the default domain."""
    values: dict[str, dict[str, Any]] = {}
    for qualified, item in items.items():
        domain, slash, name = qualified.partition("/")
        if not slash:
            domain, name = driver, qualified
        values.setdefault(domain, {})[name] = read(item)
    return values


def attribute_value(attribute: Mapping[str, Any]) -> Any:
    for kind, value in attribute.items():
        match kind:
            case "int" | "bool" | "string" | "ints" | "bools" | "strings":
                return value
            case "version":
                return semver(value)
            case "versions":
                return [semver(text) for text in value]
    raise CelError("unsupported attribute value")


def capacity_value(capacity: Mapping[str, Any]) -> Any:
    return quantity(str(capacity["value"]))
