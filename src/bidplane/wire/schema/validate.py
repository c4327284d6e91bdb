"""Validation of a value by its schema: required fields, enums, patterns, bounds, combinations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from bidplane.wire.schema import formats, shapes
from bidplane.wire.schema.shapes import SchemaNode
from bidplane.wire.status import Cause

# The work that one object may cause, in steps of about 10 ns: half a second. Agents write
# schemas, too: an expression of thousands of instructions, or an enum of thousands of words.
STEPS_LIMIT = 50_000_000
_VISIT = 200  # steps to look at a value
_TEXT = 20  # steps for each character of a message


class TooCostlyError(Exception):
    """Raised when the steps of an object are used up."""


class _Causes(list[Cause]):
    """The violations found so far, and the steps that are left."""

    def __init__(self, steps_left: list[int]) -> None:
        super().__init__()
        self.steps_left = steps_left

    def spend(self, steps: int) -> None:
        self.steps_left[0] -= steps
        if self.steps_left[0] < 0:
            raise TooCostlyError

    def append(self, cause: Cause) -> None:
        self.spend(_TEXT * len(cause.message))
        super().append(cause)


def problems(
    value: Any, shape: SchemaNode, path: str = "", *, passed: Collection[str] = ()
) -> list[Cause]:
    """
    Return every violation of `shape` by `value`, whose types were checked before.

    The fields in `passed` are known to be valid. An object whose check takes too many steps is
    refused.
    """
    causes = _Causes([STEPS_LIMIT])
    try:
        _check(value, shape, path, causes, passed)
    except TooCostlyError:
        message = (
            "Forbidden: to check the object takes too long. Send a smaller one, or simplify the"
            " patterns, enums and combinations of its schema"
        )
        return [Cause(message, path, "FieldValueForbidden")]
    return causes


def _check(
    value: Any, shape: SchemaNode, path: str, causes: _Causes, passed: Collection[str] = ()
) -> None:
    if value is None:
        return
    causes.spend(_VISIT + 4 * len(shape.enum) + 20 * len(shape.required))
    # To Go an empty enum is an absent one; whether it is required is the kind's own rule.
    if shape.enum and value not in shape.enum and not (shape.builtin and value == ""):
        # Upstream sorts its own, and leaves a definition's in their order.
        ordered = sorted(map(str, shape.enum)) if shape.builtin else shape.enum
        allowed = ", ".join(f'"{item}"' for item in ordered)
        causes.append(
            Cause(
                f'Unsupported value: "{value}": supported values: {allowed}',
                path,
                "FieldValueNotSupported",
            )
        )
    if shape.rules or shape.pattern:
        _rules(value, shape, path, causes)
    prefix = f"{path}." if path else ""
    if type(value) is dict or isinstance(value, Mapping):
        if not shape.builtin:
            for name in shape.required:
                if name not in value:
                    field = f"{prefix}{name}"
                    causes.append(Cause("Required value", field, "FieldValueRequired"))
        for name, item in value.items():
            child = shape.fields.get(name) or shape.values
            if child is not None and child.needs_validation and name not in passed:
                _check(item, child, f"{prefix}{name}", causes)
    elif isinstance(value, list):
        if shape.items is not None and shape.items.needs_validation:
            for at, item in enumerate(value):
                _check(item, shape.items, f"{path}[{at}]", causes)
        _unique(value, shape, path, causes)


def _unique(value: list[Any], shape: SchemaNode, path: str, causes: _Causes) -> None:
    if shape.list_type == "map" and not shape.builtin:
        keys = [tuple(str(item.get(key)) for key in shape.list_map_keys) for item in value]
    elif shape.list_type == "set" and not shape.builtin:
        keys = [(str(item),) for item in value]
    else:
        return
    earlier: set[tuple[str, ...]] = set()
    for at, key in enumerate(keys):
        if key in earlier:
            message = f'Duplicate value: "{",".join(key)}"'
            causes.append(Cause(message, f"{path}[{at}]", "FieldValueDuplicate"))
        earlier.add(key)


def _rules(value: Any, shape: SchemaNode, path: str, causes: _Causes) -> None:
    def say(rule: str, offender: Any = value) -> None:
        text = _quoted(offender) if isinstance(offender, str) else str(offender)
        causes.append(Cause(f"Invalid value: {text}: {path} in body {rule}", path))

    rules = shape.rules
    if isinstance(value, str):
        if shape.pattern:
            causes.spend(shape.pattern.instructions * (len(value) + 1))
            if not shape.pattern.matches(value):
                say(f"should match '{shape.pattern.pattern}'")
        if len(value) < rules.get("minLength", 0):
            say(f"should be at least {rules['minLength']} chars long")
        if "maxLength" in rules and len(value) > rules["maxLength"]:
            causes.append(Cause(f"Too long: may not be more than {rules['maxLength']} bytes", path))
        if "format" in rules and not formats.text_fits(rules["format"], value):
            text = _quoted(value)
            message = f"Invalid value: {text}: {path} in body must be of type {rules['format']}"
            causes.append(Cause(f"{message}: {text}", path, "FieldValueTypeInvalid"))
    elif isinstance(value, bool):
        pass
    elif isinstance(value, int | float):
        _bounds(value, rules, say)
        if "format" in rules and not formats.number_fits(rules["format"], value):
            expected = f"type {shape.kind} with format {rules['format']} in {path}"
            # As upstream, whose error has no field of its own.
            causes.append(Cause(f'Invalid value: "": Checked value must be of {expected}', "<nil>"))
    elif isinstance(value, list):
        if len(value) < rules.get("minItems", 0):
            say(f"should have at least {rules['minItems']} items", len(value))
        if "maxItems" in rules and len(value) > rules["maxItems"]:
            message = f"Too many: {len(value)}: must have at most {rules['maxItems']} items"
            causes.append(Cause(message, path))
    elif isinstance(value, Mapping):
        if len(value) < rules.get("minProperties", 0):
            say(f"should have at least {rules['minProperties']} properties", len(value))
        if "maxProperties" in rules and len(value) > rules["maxProperties"]:
            message = f"Too many: {len(value)}: must have at most {rules['maxProperties']} items"
            causes.append(Cause(message, path))
    _combinations(value, rules, path, causes)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


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


def _combinations(value: Any, rules: Mapping[str, Any], path: str, causes: _Causes) -> None:
    def fits(shape: SchemaNode) -> bool:
        causes.spend(_VISIT)
        if not _typed(value, shape):
            return False
        inner = _Causes(causes.steps_left)
        _check(value, shape, path, inner)
        return not inner

    for shape in rules.get("allOf", ()):
        _check(value, shape, path, causes)
    if rules.get("anyOf") and not any(map(fits, rules["anyOf"])):
        causes.append(
            Cause(f"Invalid value: {path} in body must validate at least one schema (anyOf)", path)
        )
    if rules.get("oneOf") and sum(map(fits, rules["oneOf"])) != 1:
        causes.append(
            Cause(
                f"Invalid value: {path} in body must validate one and only one schema (oneOf)", path
            )
        )
    if rules.get("not") and fits(rules["not"]):
        causes.append(
            Cause(f"Invalid value: {path} in body must not validate the schema (not)", path)
        )


def _typed(value: Any, shape: SchemaNode) -> bool:
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
