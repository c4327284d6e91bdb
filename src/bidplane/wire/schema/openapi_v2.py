"""
OpenAPI v2 (Swagger): one document for all resources, made from the v3 parts.

kubectl falls back on it for kinds that no v3 document has: a `List`, a kind that is not served,
and `explain --output plaintext-openapiv2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bidplane.wire.resources import Resource, release
from bidplane.wire.schema import openapi
from bidplane.wire.schema.openapi import Words

JSON_TYPE = "application/json"
PROTOBUF_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
# What clients send; the answer's type has another sign, as upstream's.
PROTOBUF_ASKED = ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", PROTOBUF_TYPE)

_V3, _V2 = "#/components/schemas/", "#/definitions/"
_KEPT = (
    "type",
    "format",
    "description",
    "default",
    "enum",
    "required",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
_UNTYPED = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string", "nullable")


def document(
    resources: Iterable[Resource], prose: Mapping[str, Words] | None = None
) -> dict[str, Any]:
    """Return the document of `resources`."""
    paths, schemas = openapi.parts(resources, prose)
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": release()},
        "paths": {
            path: {method: _operation(operation) for method, operation in item.items()}
            for path, item in paths.items()
        },
        "definitions": {name: _schema(schema) for name, schema in schemas.items()},
    }


def _operation(operation: Mapping[str, Any]) -> dict[str, Any]:
    converted: dict[str, Any] = {
        "operationId": operation["operationId"],
        "produces": [JSON_TYPE],
        "responses": {
            code: {"description": answer["description"], "schema": _body(answer)}
            for code, answer in operation["responses"].items()
        },
    }
    parameters = [
        {"name": parameter["name"], "in": parameter["in"], **parameter["schema"]}
        for parameter in operation.get("parameters") or ()
    ]
    if body := operation.get("requestBody"):
        converted["consumes"] = list(body["content"])
        schema = _body(body)
        parameters.insert(0, {"name": "body", "in": "body", "required": True, "schema": schema})
    if parameters:
        converted["parameters"] = parameters
    extensions = {key: value for key, value in operation.items() if key.startswith("x-")}
    return converted | extensions


def _body(holder: Mapping[str, Any]) -> dict[str, Any]:
    return _schema(next(iter(holder["content"].values()))["schema"])


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace(_V3, _V2)}
    wrapped = schema.get("allOf")
    if wrapped and len(wrapped) == 1 and "$ref" in wrapped[0]:
        shared = {key: schema[key] for key in ("description", "default") if key in schema}
        return {**_schema(wrapped[0]), **shared}
    converted = {key: schema[key] for key in _KEPT if key in schema}
    if "oneOf" in schema and "type" not in schema:
        converted["type"] = "string"  # a quantity, an int-or-string: v2 has no choice of types
    extensions = {key: value for key, value in schema.items() if key.startswith("x-")}
    if any(schema.get(key) for key in _UNTYPED):
        # v2 cannot express them: a value of any type has no type there.
        if "oneOf" not in schema:
            converted = {
                key: converted[key] for key in ("description", "default") if key in converted
            }
        return converted | extensions
    if "properties" in schema:
        converted["properties"] = {
            name: _schema(child) for name, child in schema["properties"].items()
        }
    if isinstance(schema.get("items"), Mapping):
        converted["items"] = _schema(schema["items"])
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        converted["additionalProperties"] = _schema(additional)
    elif isinstance(additional, bool):
        converted["additionalProperties"] = additional
    return converted | extensions
