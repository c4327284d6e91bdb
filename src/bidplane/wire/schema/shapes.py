"""
The shape of a kind: its fields and their types, from a built-in schema or a CRD.

Built-in kinds come from the recorded tables, custom kinds from the structural schema of
their CRD. Both become a `SchemaNode`, so decoding, pruning, defaulting, validation and
strategic merge are each written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.wire import data, regex

ANY, OBJECT, ARRAY, STRING = "any", "object", "array", "string"
INTEGER, NUMBER, BOOLEAN = "integer", "number", "boolean"
INT_OR_STRING, QUANTITY = "int-or-string", "quantity"
# Of built-in kinds only: text that Go decodes into something else.
BYTES, TIME, MICRO_TIME = "bytes", "time", "micro-time"

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_DECODED_TEXT = {
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": TIME,
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": MICRO_TIME,
    _QUANTITY: QUANTITY,
}
INT32, INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
# Their JSON is a schema or something else: recorded as any value.
_SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
_SCHEMA_OR = (f"{_SCHEMA}OrArray", f"{_SCHEMA}OrBool", f"{_SCHEMA}OrStringArray")
# What a Go decoder fills in anyway says nothing about the object.
_ZERO: tuple[Any, ...] = ({}, "", 0, None, False)


class SchemaNode:
    """One node of a schema. `fields` is None for a map or for free-form JSON."""

    __slots__ = (
        "_defaulted",
        "_needs_validation",
        "builtin",
        "default",
        "definition",
        "enum",
        "fields",
        "items",
        "kind",
        "limits",
        "list_map_keys",
        "list_type",
        "map_type",
        "merge_key",
        "nested",
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
        self.definition = ""  # of a built-in struct: the name of its definition
        self.nested: SchemaNode | None = None  # of any value: the shape of the objects among them
        self.limits: tuple[int, int] | None = None  # of an integer
        self.fields: dict[str, SchemaNode] = {}
        self.values: SchemaNode | None = None
        self.items: SchemaNode | None = None
        self.required: tuple[str, ...] = ()
        self.default: Any = None
        self.enum: tuple[Any, ...] = ()
        self.pattern: regex.Pattern | None = None
        self.rules: Mapping[str, Any] = {}  # the keywords only validation reads
        self.nullable = False
        self.preserve = False  # unknown fields stay
        self.builtin = False
        self.merge_key = ""
        self.patch_strategy: tuple[str, ...] = ()
        self.list_type = ""
        self.list_map_keys: tuple[str, ...] = ()
        self.map_type = ""  # "atomic": applied whole
        self._defaulted: tuple[tuple[str, SchemaNode, int], ...] | None = None
        self._needs_validation: bool | None = None

    @property
    def defaulted(self) -> tuple[tuple[str, SchemaNode, int], ...]:
        """The fields that have a default, and the bytes of each: few of the dozens a kind has."""
        if self._defaulted is None:
            self._defaulted = tuple(
                (name, child, len(name) + len(msgspec.json.encode(child.default)))
                for name, child in self.fields.items()
                if child.default is not None
            )
        return self._defaulted

    @property
    def needs_validation(self) -> bool:
        """
        True if a value of the right type, or a part of it, can still be invalid. Most objects
        have few such fields; the others need no validation.
        """
        if self._needs_validation is None:
            self._needs_validation = True  # so that a recursive schema is validated
            below = [*self.fields.values(), self.values, self.items]
            self._needs_validation = bool(
                self.enum
                or self.rules
                or self.pattern
                or (not self.builtin and (self.required or self.list_type in ("map", "set")))
                or any(shape is not None and shape.needs_validation for shape in below)
            )
        return self._needs_validation


# Built-in kinds.


def builtin(api_version: str, kind: str) -> SchemaNode | None:
    """The shape of a built-in kind (or of a sub-object like `v1/Binding`)."""
    name = data.schemas()["kinds"].get(f"{api_version}/{kind}")
    return None if name is None else _definition(name)


def object_meta() -> SchemaNode:
    return _definition(_META)


_definitions: dict[str, SchemaNode] = {}


def _definition(name: str) -> SchemaNode:
    """Return the schema of a built-in type by its full name, as `io.k8s.api.core.v1.Pod`."""
    shape = _definitions.get(name)
    if shape is None:
        # Registered before it is filled: JSONSchemaProps contains itself.
        shape = _definitions[name] = SchemaNode()
        _fill(shape, data.schemas()["definitions"][name])
        shape.definition = name
        if name in _SCHEMA_OR:
            shape.nested = _definition(_SCHEMA)
        shape.kind = _DECODED_TEXT.get(name, shape.kind)
    return shape


def _node(facts: Mapping[str, Any]) -> SchemaNode:
    default = facts.get("default")
    meaningful = default not in _ZERO
    if "ref" in facts:
        target = _definition(facts["ref"])
        if not meaningful and not facts.keys() - {"ref", "default"}:
            return target
        shape = SchemaNode()
        for slot in SchemaNode.__slots__:
            setattr(shape, slot, getattr(target, slot))
    else:
        shape = SchemaNode()
        _fill(shape, facts)
    if "ref" in facts:
        shape.map_type = facts.get("mapType", shape.map_type)
    if meaningful:
        shape.default = default
    return shape


def _fill(shape: SchemaNode, facts: Mapping[str, Any]) -> None:
    shape.builtin = True
    shape.kind = facts.get("type", ANY)
    if facts.get("format") == "int-or-string":
        shape.kind = INT_OR_STRING
    elif facts.get("format") == "byte":
        shape.kind = BYTES
    if shape.kind == INTEGER:
        shape.limits = INT32 if facts.get("format") == "int32" else INT64
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
_COMBINATIONS = ("allOf", "anyOf", "oneOf", "not")  # their values are shapes, or lists of these


def custom(schema: Mapping[str, Any]) -> SchemaNode:
    """The shape a CRD's `openAPIV3Schema` describes, with Kubernetes' own metadata."""
    shape = _structural(schema)
    if shape.kind == ANY:
        shape.kind = OBJECT
    text = SchemaNode(STRING)
    shape.fields = {**shape.fields, "apiVersion": text, "kind": text, "metadata": object_meta()}
    return shape


def _structural(schema: Mapping[str, Any]) -> SchemaNode:
    shape = SchemaNode(schema.get("type") or ANY)
    if shape.kind == INTEGER:
        shape.limits = INT64
    if schema.get("x-kubernetes-int-or-string"):
        shape.kind = INT_OR_STRING
    properties = schema.get("properties") or {}
    shape.fields = {name: _structural(child) for name, child in properties.items()}
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        shape.values = _structural(additional)
    elif additional is True:
        shape.values = SchemaNode(ANY)
    if isinstance(schema.get("items"), Mapping):
        shape.items = _structural(schema["items"])
    shape.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if schema.get("x-kubernetes-embedded-resource"):
        text = SchemaNode(STRING)
        shape.fields |= {"apiVersion": text, "kind": text, "metadata": object_meta()}
    shape.required = tuple(schema.get("required") or ())
    shape.default = schema.get("default")
    shape.enum = tuple(schema.get("enum") or ())
    shape.nullable = bool(schema.get("nullable"))
    if schema.get("pattern"):
        shape.pattern = _pattern(schema["pattern"])
    shape.rules = {name: schema[name] for name in _RULES if schema.get(name) is not None}
    for name in _COMBINATIONS:
        if branches := shape.rules.get(name):
            single = isinstance(branches, Mapping)
            shape.rules[name] = (
                _structural(branches) if single else tuple(map(_structural, branches))
            )
    shape.list_type = schema.get("x-kubernetes-list-type") or ""
    shape.map_type = schema.get("x-kubernetes-map-type") or ""
    shape.list_map_keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    return shape


def _pattern(text: str) -> regex.Pattern | None:
    """
    Compile a schema's pattern.

    An earlier release kept CRDs with patterns that RE2 does not have; theirs is not checked.
    """
    try:
        return regex.compile(text)
    except regex.BadPattern:
        return None


def uses_cel(schema: Any) -> bool:
    """Return true if any part of a CRD's schema has `x-kubernetes-validations`."""
    if isinstance(schema, Mapping):
        if "x-kubernetes-validations" in schema:
            return True
        return any(uses_cel(child) for child in schema.values())
    if isinstance(schema, list):
        return any(uses_cel(child) for child in schema)
    return False


def custom_part(schema: Mapping[str, Any]) -> SchemaNode:
    """A part of a CRD's schema: a shape without metadata of its own."""
    return _structural(schema)
