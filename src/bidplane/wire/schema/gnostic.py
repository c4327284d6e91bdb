"""
An OpenAPI v2 document as protobuf: the form in which kubectl asks for it.

The messages are those of `OpenAPIv2.proto` of github.com/google/gnostic-models. Its structure
follows the JSON closely: a field is a scalar, a message, a list of either, or a map that is a list
of names and values. What begins with `x-` is a vendor extension, whose value is YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

JSON = Mapping[str, Any]
_REF = "$ref"


def encode(document: JSON) -> bytes:
    """Encode an `openapi.v2.Document`."""
    return b"".join(
        [
            _text(1, document["swagger"]),
            _bytes(2, _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])),
            _bytes(8, _named(2, document["paths"], _path_item)),
            _bytes(9, _named(1, document["definitions"], _schema)),
        ]
    )


# Wire format.


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _bytes(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode())


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value & (1 << 64) - 1)


def _named(number: int, values: JSON, encoder: Callable[[Any], bytes]) -> bytes:
    """Encode a map: entries of a name (1) and a value (2)."""
    return b"".join(
        _bytes(number, _text(1, name) + _bytes(2, encoder(value))) for name, value in values.items()
    )


def _any(value: Any) -> bytes:
    """Encode any value, as the YAML that JSON is."""
    return _text(2, msgspec.json.encode(value).decode() + "\n")


def _extensions(number: int, values: JSON) -> bytes:
    extensions = {name: value for name, value in values.items() if name.startswith("x-")}
    return _named(number, extensions, _any)


# Messages.

_TEXTS = {_REF: 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
_NUMBERS = {
    "maxLength": 11,
    "minLength": 12,
    "maxItems": 14,
    "minItems": 15,
    "maxProperties": 17,
    "minProperties": 18,
}


def _schema(schema: JSON) -> bytes:
    parts = [_text(number, schema[name]) for name, number in _TEXTS.items() if name in schema]
    if "default" in schema:
        parts.append(_bytes(5, _any(schema["default"])))
    parts += [_integer(number, schema[name]) for name, number in _NUMBERS.items() if name in schema]
    parts += [_text(19, name) for name in schema.get("required") or ()]
    parts += [_bytes(20, _any(value)) for value in schema.get("enum") or ()]
    additional = schema.get("additionalProperties")
    if isinstance(additional, bool):
        parts.append(_bytes(21, _integer(2, int(additional))))
    elif additional is not None:
        parts.append(_bytes(21, _bytes(1, _schema(additional))))
    if "type" in schema:
        parts.append(_bytes(22, _text(1, schema["type"])))
    if "items" in schema:
        parts.append(_bytes(23, _bytes(1, _schema(schema["items"]))))
    if "properties" in schema:
        parts.append(_bytes(25, _named(1, schema["properties"], _schema)))
    return b"".join([*parts, _extensions(31, schema)])


_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}


def _path_item(item: JSON) -> bytes:
    return b"".join(
        _bytes(number, _operation(item[method]))
        for method, number in _METHODS.items()
        if method in item
    )


def _operation(operation: JSON) -> bytes:
    parts = [_text(5, operation["operationId"])]
    parts += [_text(6, media) for media in operation["produces"]]
    parts += [_text(7, media) for media in operation.get("consumes") or ()]
    parts += [
        _bytes(8, _bytes(1, _parameter(parameter)))
        for parameter in operation.get("parameters") or ()
    ]
    parts.append(_bytes(9, _named(1, operation["responses"], _response)))
    return b"".join([*parts, _extensions(13, operation)])


def _parameter(parameter: JSON) -> bytes:
    if parameter["in"] == "body":
        body = [
            _text(2, parameter["name"]),
            _text(3, "body"),
            _integer(4, int(parameter.get("required", False))),
            _bytes(5, _schema(parameter["schema"])),
        ]
        return _bytes(1, b"".join(body))
    query = [
        _text(2, parameter["in"]),
        _text(4, parameter["name"]),
        _text(6, parameter["type"]),
        _integer(20, int(parameter.get("uniqueItems", False))),
    ]
    return _bytes(2, _bytes(3, b"".join(query)))


def _response(response: JSON) -> bytes:
    parts = [_text(1, response["description"])]
    if "schema" in response:
        parts.append(_bytes(2, _bytes(1, _schema(response["schema"]))))
    return _bytes(1, b"".join(parts))
