"""What a schema demands of a value: required fields, enums, patterns, bounds, combinations."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from bidplane.wire import shapes
from bidplane.wire.shapes import Shape
from bidplane.wire.status import Cause

_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def problems(
    value: Any, shape: Shape, path: str = "", *, passed: Collection[str] = ()
) -> list[Cause]:
    """
    Every way in which `value` is not what `shape` demands; types were checked before.

    `passed` are fields of it that are known to be right.
    """
    found: list[Cause] = []
    _check(value, shape, path, found, passed)
    return found


def _check(
    value: Any, shape: Shape, path: str, found: list[Cause], passed: Collection[str] = ()
) -> None:
    if value is None:
        return
    # To Go an empty enum is an absent one; whether it is required is the kind's own rule.
    if shape.enum and value not in shape.enum and not (shape.builtin and value == ""):
        # Upstream sorts its own, and leaves a definition's in their order.
        ordered = sorted(map(str, shape.enum)) if shape.builtin else shape.enum
        allowed = ", ".join(f'"{item}"' for item in ordered)
        found.append(
            Cause(
                f'Unsupported value: "{value}": supported values: {allowed}',
                path,
                "FieldValueNotSupported",
            )
        )
    if shape.rules or shape.pattern:
        _rules(value, shape, path, found)
    prefix = f"{path}." if path else ""
    if type(value) is dict or isinstance(value, Mapping):
        if not shape.builtin:
            found.extend(
                Cause("Required value", f"{prefix}{name}", "FieldValueRequired")
                for name in shape.required
                if name not in value
            )
        for name, item in value.items():
            child = shape.fields.get(name) or shape.values
            if child is not None and child.demands and name not in passed:
                _check(item, child, f"{prefix}{name}", found)
    elif isinstance(value, list):
        if shape.items is not None and shape.items.demands:
            for at, item in enumerate(value):
                _check(item, shape.items, f"{path}[{at}]", found)
        _unique(value, shape, path, found)


def _unique(value: list[Any], shape: Shape, path: str, found: list[Cause]) -> None:
    if shape.list_type == "map" and not shape.builtin:
        keys = [tuple(str(item.get(key)) for key in shape.list_map_keys) for item in value]
    elif shape.list_type == "set" and not shape.builtin:
        keys = [(str(item),) for item in value]
    else:
        return
    seen: set[tuple[str, ...]] = set()
    for at, key in enumerate(keys):
        if key in seen:
            said = f'Duplicate value: "{",".join(key)}"'
            found.append(Cause(said, f"{path}[{at}]", "FieldValueDuplicate"))
        seen.add(key)


def _rules(value: Any, shape: Shape, path: str, found: list[Cause]) -> None:
    def say(words: str, shown: Any = value) -> None:
        text = f'"{shown}"' if isinstance(shown, str) else str(shown)
        found.append(Cause(f"Invalid value: {text}: {path} in body {words}", path))

    rules = shape.rules
    if isinstance(value, str):
        if shape.pattern and not shape.pattern.search(value):
            say(f"should match '{shape.pattern.pattern}'")
        if len(value) < rules.get("minLength", 0):
            say(f"should be at least {rules['minLength']} chars long")
        if "maxLength" in rules and len(value) > rules["maxLength"]:
            found.append(Cause(f"Too long: may not be more than {rules['maxLength']} bytes", path))
        if rules.get("format") == "date-time" and not _DATE_TIME.fullmatch(value):
            say(f'must be of type date-time: "{value}"')
    elif isinstance(value, bool):
        pass
    elif isinstance(value, int | float):
        _bounds(value, rules, say)
    elif isinstance(value, list):
        if len(value) < rules.get("minItems", 0):
            say(f"should have at least {rules['minItems']} items", len(value))
        if "maxItems" in rules and len(value) > rules["maxItems"]:
            words = f"Too many: {len(value)}: must have at most {rules['maxItems']} items"
            found.append(Cause(words, path))
    elif isinstance(value, Mapping):
        if len(value) < rules.get("minProperties", 0):
            say(f"should have at least {rules['minProperties']} properties", len(value))
        if "maxProperties" in rules and len(value) > rules["maxProperties"]:
            words = f"Too many: {len(value)}: must have at most {rules['maxProperties']} items"
            found.append(Cause(words, path))
    _combinations(value, rules, path, found)


def _bounds(value: float, rules: Mapping[str, Any], say: Any) -> None:
    low, high = rules.get("minimum"), rules.get("maximum")
    if low is not None:
        if rules.get("exclusiveMinimum") and value <= low:
            say(f"should be greater than {low}")
        elif value < low:
            say(f"should be greater than or equal to {low}")
    if high is not None:
        if rules.get("exclusiveMaximum") and value >= high:
            say(f"should be less than {high}")
        elif value > high:
            say(f"should be less than or equal to {high}")
    step = rules.get("multipleOf")
    if step and value % step:
        say(f"should be a multiple of {step}")


def _combinations(value: Any, rules: Mapping[str, Any], path: str, found: list[Cause]) -> None:
    def fits(schema: Mapping[str, Any]) -> bool:
        shape = shapes.custom_part(schema)
        return _typed(value, shape) and not problems(value, shape, path)

    for schema in rules.get("allOf", ()):
        found.extend(problems(value, shapes.custom_part(schema), path))
    if rules.get("anyOf") and not any(map(fits, rules["anyOf"])):
        found.append(
            Cause(f"Invalid value: {path} in body must validate at least one schema (anyOf)", path)
        )
    if rules.get("oneOf") and sum(map(fits, rules["oneOf"])) != 1:
        found.append(
            Cause(
                f"Invalid value: {path} in body must validate one and only one schema (oneOf)", path
            )
        )
    if rules.get("not") and fits(rules["not"]):
        found.append(
            Cause(f"Invalid value: {path} in body must not validate the schema (not)", path)
        )


def _typed(value: Any, shape: Shape) -> bool:
    match shape.kind:
        case shapes.STRING:
            return isinstance(value, str)
        case shapes.INTEGER:
            return isinstance(value, int) and not isinstance(value, bool)
        case shapes.NUMBER:
            return isinstance(value, int | float) and not isinstance(value, bool)
        case shapes.BOOLEAN:
            return isinstance(value, bool)
        case shapes.OBJECT:
            return isinstance(value, Mapping)
        case shapes.ARRAY:
            return isinstance(value, list)
        case _:
            return True
