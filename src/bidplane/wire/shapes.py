"""
The shape of a kind: its fields and their types, whatever said so.

Built-in kinds come from the recorded tables, custom kinds from the structural schema of
their CRD. Both become a `Shape`, so decoding, pruning, defaulting, validation and
strategic merge are each written once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from bidplane.wire import data

ANY, OBJECT, ARRAY, STRING = "any", "object", "array", "string"
INTEGER, NUMBER, BOOLEAN = "integer", "number", "boolean"
INT_OR_STRING, QUANTITY = "int-or-string", "quantity"

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
# What a Go decoder fills in anyway says nothing about the object.
_ZERO: tuple[Any, ...] = ({}, "", 0, None, False)


class Shape:
    """One node of a schema. `fields` is None for a map or for free-form JSON."""

    __slots__ = (
        "_defaulted",
        "_demands",
        "builtin",
        "default",
        "enum",
        "fields",
        "items",
        "kind",
        "list_map_keys",
        "list_type",
        "map_type",
        "merge_key",
        "nullable",
        "patch_strategy",
        "pattern",
        "preserve",
        "required",
        "rules",
        "values",
    )

    def __init__(self, kind: str = ANY) -> None:
        self.kind = kind
        self.fields: dict[str, Shape] = {}
        self.values: Shape | None = None
        self.items: Shape | None = None
        self.required: tuple[str, ...] = ()
        self.default: Any = None
        self.enum: tuple[Any, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.rules: Mapping[str, Any] = {}  # the keywords only validation reads
        self.nullable = False
        self.preserve = False  # unknown fields stay
        self.builtin = False
        self.merge_key = ""
        self.patch_strategy: tuple[str, ...] = ()
        self.list_type = ""
        self.list_map_keys: tuple[str, ...] = ()
        self.map_type = ""  # "atomic": applied whole
        self._defaulted: tuple[tuple[str, Shape], ...] | None = None
        self._demands: bool | None = None

    @property
    def defaulted(self) -> tuple[tuple[str, Shape], ...]:
        """The fields that have a default: few of the dozens a kind has."""
        if self._defaulted is None:
            self._defaulted = tuple(
                (name, child) for name, child in self.fields.items() if child.default is not None
            )
        return self._defaulted

    @property
    def demands(self) -> bool:
        """
        Whether a value of the right type can still be wrong, in itself or in what is in it. Most
        of what a cluster keeps cannot, and need not be walked through.
        """
        if self._demands is None:
            self._demands = True  # what refers to itself is looked at
            below = [*self.fields.values(), self.values, self.items]
            self._demands = bool(
                self.enum
                or self.rules
                or self.pattern
                or (not self.builtin and (self.required or self.list_type in ("map", "set")))
                or any(shape is not None and shape.demands for shape in below)
            )
        return self._demands


# Built-in kinds.


def builtin(api_version: str, kind: str) -> Shape | None:
    """The shape of a built-in kind (or of a sub-object like `v1/Binding`)."""
    name = data.schemas()["kinds"].get(f"{api_version}/{kind}")
    return None if name is None else _definition(name)


def object_meta() -> Shape:
    return _definition(_META)


_definitions: dict[str, Shape] = {}


def _definition(name: str) -> Shape:
    shape = _definitions.get(name)
    if shape is None:
        # Registered before it is filled: JSONSchemaProps contains itself.
        shape = _definitions[name] = Shape()
        _fill(shape, data.schemas()["definitions"][name])
        if name == _QUANTITY:
            shape.kind = QUANTITY
    return shape


def _node(facts: Mapping[str, Any]) -> Shape:
    default = facts.get("default")
    meaningful = default not in _ZERO
    if "ref" in facts:
        target = _definition(facts["ref"])
        if not meaningful and not facts.keys() - {"ref", "default"}:
            return target
        shape = Shape()
        for slot in Shape.__slots__:
            setattr(shape, slot, getattr(target, slot))
    else:
        shape = Shape()
        _fill(shape, facts)
    if "ref" in facts:
        shape.map_type = facts.get("mapType", shape.map_type)
    if meaningful:
        shape.default = default
    return shape


def _fill(shape: Shape, facts: Mapping[str, Any]) -> None:
    shape.builtin = True
    shape.kind = facts.get("type", ANY)
    if facts.get("format") == "int-or-string":
        shape.kind = INT_OR_STRING
    shape.fields = {name: _node(child) for name, child in facts.get("fields", {}).items()}
    if "values" in facts:
        shape.values = _node(facts["values"])
    if "items" in facts:
        shape.items = _node(facts["items"])
    shape.preserve = shape.kind == OBJECT and not shape.fields and shape.values is None
    shape.enum = tuple(facts.get("enum", ()))
    shape.merge_key = facts.get("mergeKey", "")
    shape.patch_strategy = tuple(filter(None, facts.get("patchStrategy", "").split(",")))
    shape.list_type = facts.get("listType", "")
    shape.map_type = facts.get("mapType", "")
    shape.list_map_keys = tuple(facts.get("listMapKeys", ()))
    shape.required = tuple(facts.get("required", ()))


# Custom kinds.

_RULES = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "format",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
)


def custom(schema: Mapping[str, Any]) -> Shape:
    """The shape a CRD's `openAPIV3Schema` describes, with Kubernetes' own metadata."""
    shape = _structural(schema)
    if shape.kind == ANY:
        shape.kind = OBJECT
    text = Shape(STRING)
    shape.fields = {**shape.fields, "apiVersion": text, "kind": text, "metadata": object_meta()}
    return shape


def _structural(schema: Mapping[str, Any]) -> Shape:
    shape = Shape(schema.get("type") or ANY)
    if schema.get("x-kubernetes-int-or-string"):
        shape.kind = INT_OR_STRING
    properties = schema.get("properties") or {}
    shape.fields = {name: _structural(child) for name, child in properties.items()}
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        shape.values = _structural(additional)
    elif additional is True:
        shape.values = Shape(ANY)
    if isinstance(schema.get("items"), Mapping):
        shape.items = _structural(schema["items"])
    shape.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if schema.get("x-kubernetes-embedded-resource"):
        text = Shape(STRING)
        shape.fields |= {"apiVersion": text, "kind": text, "metadata": object_meta()}
    shape.required = tuple(schema.get("required") or ())
    shape.default = schema.get("default")
    shape.enum = tuple(schema.get("enum") or ())
    shape.nullable = bool(schema.get("nullable"))
    if schema.get("pattern"):
        shape.pattern = _pattern(schema["pattern"])
    shape.rules = {name: schema[name] for name in _RULES if schema.get(name) is not None}
    shape.list_type = schema.get("x-kubernetes-list-type") or ""
    shape.map_type = schema.get("x-kubernetes-map-type") or ""
    shape.list_map_keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    return shape


@functools.lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def uses_cel(schema: Any) -> bool:
    """Whether any part of a CRD's schema carries `x-kubernetes-validations`."""
    if isinstance(schema, Mapping):
        if "x-kubernetes-validations" in schema:
            return True
        return any(uses_cel(child) for child in schema.values())
    if isinstance(schema, list):
        return any(uses_cel(child) for child in schema)
    return False


def custom_part(schema: Mapping[str, Any]) -> Shape:
    """A branch of allOf, anyOf, oneOf or not: a shape without metadata of its own."""
    return _structural(schema)
