"""
Selectors of devices: one expression, asked of one device at a time.

`device.attributes` is a map of maps. Upstream's outer map answers an unknown domain with an empty
map, and says `false` to `"domain" in device.attributes`; the library's maps cannot do both. So
every domain an expression could name is put in for it to look up, and where an expression asks
*whether* a domain is there, it is given the map as it really is.
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
# The map itself, not what is in it: all but `device.attributes["domain"]` and `.domain`.
_WHOLE_MAP = re.compile(
    r"(?<![\w.])device\s*\.\s*(attributes|capacity)\b"
    r"(?!\s*\[)(?!\s*\.\s*\??\s*(?!(?:all|exists|exists_one|existsOne|map|filter)\s*\()\w)"
)
_INDEX = re.compile(r"\[\s*\??\s*")
_PLAIN_INDEX = re.compile(r"""\[\s*\??\s*(?:"\s*"|device\s*\.\s*driver)\s*\]""")
_FIELDS = ("driver", "attributes", "capacity", "allowMultipleAllocations")

Values = Mapping[str, Mapping[str, Any]]  # by domain, by name


class Selector:
    """A compiled selector."""

    __slots__ = ("_literals", "_program", "_words", "source")

    def __init__(self, source: str, program: cel.Program, names_are_plain: bool) -> None:
        self.source, self._program = source, program
        self._literals = tuple({text[1:-1] for text in _TEXT.findall(source)})
        words = program.words | set(self._literals)
        self._words: frozenset[str] | None = frozenset(words) if names_are_plain else None

    def matches(self, driver: str, multiple: bool, attributes: Values, capacity: Values) -> bool:
        """Whether the device is meant; raises `CelError`."""
        device = {
            "driver": driver,
            "allowMultipleAllocations": multiple,
            "attributes": self._filled(attributes, driver),
            "capacity": self._filled(capacity, driver),
        }
        said = self._program.evaluate(
            {"device": device, "attributes_": attributes, "capacity_": capacity}
        )
        return bool(said)

    def _filled(self, values: Values, driver: str) -> Values:
        missing: Values = {text: {} for text in (*self._literals, driver) if text not in values}
        return {**missing, **values} if missing else values

    def depends_on(self, name: str) -> bool:
        """Whether an attribute or domain of that name can change the answer; in doubt, yes."""
        return self._words is None or name in self._words


@functools.lru_cache(maxsize=4096)
def compile(source: str) -> Selector:
    """Compile a selector; raises `CelError` that says what is wrong with it."""
    if len(source.encode()) > SOURCE_LIMIT:
        raise CelError(f"the expression is longer than {SOURCE_LIMIT} bytes")
    bare = cel.without_text(source)
    for field in _FIELD.findall(bare):
        if field not in _FIELDS:
            raise CelError(f"undefined field 'device.{field}': there are {', '.join(_FIELDS)}")
    whole = [(m.start(), m.end(), m[1]) for m in _WHOLE_MAP.finditer(bare)]
    asked = source
    for start, end, field in reversed(whole):
        asked = f"{asked[:start]}{field}_{asked[end:]}"
    program = cel.compile(asked, ("device", "attributes_", "capacity_"))
    plain = len(_PLAIN_INDEX.findall(bare)) == len(_INDEX.findall(bare))
    plain &= not re.search(r"""\\|\"{3}|'{3}""", source)
    loops = bool(re.search(r"\.\s*(all|exists|exists_one|existsOne|map|filter)\s*\(", bare))
    only_in = all(re.search(r"\bin\s+$", bare[:start]) for start, _, _ in whole)
    return Selector(source, program, plain and not loops and only_in)


def values_of(items: Mapping[str, Any], driver: str, read: Any) -> dict[str, dict[str, Any]]:
    """Attributes or capacities by domain and name; those without a domain are the driver's."""
    found: dict[str, dict[str, Any]] = {}
    for qualified, item in items.items():
        domain, slash, name = qualified.partition("/")
        if not slash:
            domain, name = driver, qualified
        found.setdefault(domain, {})[name] = read(item)
    return found


def attribute_value(attribute: Mapping[str, Any]) -> Any:
    for kind, value in attribute.items():
        match kind:
            case "int" | "bool" | "string" | "ints" | "bools" | "strings":
                return value
            case "version":
                return semver(value)
            case "versions":
                return [semver(one) for one in value]
    raise CelError("unsupported attribute value")


def capacity_value(capacity: Mapping[str, Any]) -> Any:
    return quantity(str(capacity["value"]))
