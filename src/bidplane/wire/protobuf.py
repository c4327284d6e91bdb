"""
Kubernetes' protobuf bodies, turned into the JSON objects they stand for.

Typed clients send these by default. A body is four magic bytes and an envelope that names the
kind; inside is a message whose fields are numbered, not named. `data/protobuf.json` has the names.

    body → envelope (apiVersion, kind, raw) → fields by number → JSON, as Go would have written it

Go writes a field that is not a pointer also when it is empty, and its JSON leaves most of those
out; the table says which. What is absent from the message is absent here, never null (but for a
zero time as a value in a map, which has no other form).
"""

from __future__ import annotations

import base64
import datetime
import functools
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bidplane.wire import data
from bidplane.wire import depth as levels

MAGIC = b"k8s\x00"
# Deeper than any schema people write; shallow enough for Python's own stack.
MAX_DEPTH = 128
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class ProtobufError(ValueError):
    """A body that is no message of a known kind; the message names the invalid part."""


class Field(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    name: str = ""
    many: str | None = None
    inline: bool = False
    drop_zero: bool = False


class MessageType(msgspec.Struct, frozen=True):
    fields: dict[int, Field]
    special: str | None = None


# What stands on the wire under one number, in order: integers for varints, else bytes.
_Wire = dict[int, list[int | bytes]]


@functools.cache
def _message(name: str) -> MessageType:
    return msgspec.convert(data.protobuf()["messages"][name], MessageType, strict=False)


FIELDS_LIMIT = 200_000  # of a body, at 3 µs each


class _Depth:
    """How deep a message is in its body, and how many fields the body may still have."""

    def __init__(self, level: int = 0, body: _Depth | None = None) -> None:
        self.level = level
        self._body = body or self  # the count is of the whole body
        self._fields = 0

    def below(self) -> _Depth:
        return _Depth(self.level + 1, self._body)

    def split(self, view: memoryview | bytes) -> _Wire:
        """Split a message of the body; raises `ProtobufError` when the body has too many fields."""
        wire = split(view, most=FIELDS_LIMIT - self._body._fields)
        self._body._fields += sum(map(len, wire.values()))
        return wire


def is_protobuf(body: bytes) -> bool:
    return body.startswith(MAGIC)


def decode(body: bytes) -> dict[str, Any]:
    """The object in `body`, with its apiVersion and kind. Raises `ProtobufError`."""
    return _decode(body, _Depth())


def _decode(body: bytes, depth: _Depth) -> dict[str, Any]:
    if not is_protobuf(body):
        raise ProtobufError("the body does not begin with k8s\\0")
    envelope = split(memoryview(body)[len(MAGIC) :])
    meta = split(_joined(envelope, 1))
    api_version, kind = _text(_joined(meta, 1)), _text(_joined(meta, 2))
    if _joined(envelope, 3):
        encoding = _text(_joined(envelope, 3))
        raise ProtobufError(f"content encoding {encoding!r} is not supported")
    name = data.protobuf()["kinds"].get(f"{api_version}/{kind}")
    if name is None:
        raise ProtobufError(f"no kind {kind!r} in {api_version!r} has a protobuf form")
    content = _object(_message(name), _joined(envelope, 2), depth)
    return {"apiVersion": api_version, "kind": kind} | content


# The wire: numbers and bytes, without names.


def split(view: memoryview | bytes, *, most: int = FIELDS_LIMIT) -> _Wire:
    """Return the fields of a message by number; raises `ProtobufError`, also beyond `most`."""
    wire: _Wire = {}
    position, end, fields = 0, len(view), 0
    while position < end:
        fields += 1
        if fields > most:
            raise ProtobufError(f"it has more than {FIELDS_LIMIT} fields; send it as JSON")
        key, position = _varint(view, position)
        number, form = key >> 3, key & 7
        value: int | bytes
        if number == 0:
            raise ProtobufError("field number 0")
        if form == _VARINT:
            value, position = _varint(view, position)
        elif form in (_BYTES, _FIXED64, _FIXED32):
            if form == _BYTES:
                size, position = _varint(view, position)
            else:
                size = 8 if form == _FIXED64 else 4
            if size > end - position:
                raise ProtobufError(f"field {number} is cut short")
            value = bytes(view[position : position + size])
            position += size
        else:
            raise ProtobufError(f"field {number} has wire type {form}")
        wire.setdefault(number, []).append(value)
    return wire


def _varint(view: memoryview | bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        if position >= len(view):
            raise ProtobufError("a number is cut short")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
    raise ProtobufError("a number is longer than 64 bits")


def _joined(wire: _Wire, number: int) -> bytes:
    """Return the concatenated pieces of a field: that is how protobuf merges messages."""
    chunks = wire.get(number, [])
    if any(isinstance(chunk, int) for chunk in chunks):
        raise ProtobufError(f"field {number} is a number, and should not be")
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))


# Messages: fields get their names.


def _object(message: MessageType, raw: bytes, depth: _Depth) -> dict[str, Any]:
    if depth.level > MAX_DEPTH:
        raise ProtobufError(f"nested deeper than {MAX_DEPTH} messages")
    values: dict[str, Any] = {}
    for number, chunks in depth.split(raw).items():
        field = message.fields.get(number)
        if field is None:
            continue  # from a later release than the table; the real server ignores it too
        value = _field(field, number, chunks, depth)
        if field.inline:
            values |= value
        elif value is not None and not (field.drop_zero and _is_zero(value)):
            values[field.name] = value
    return values


def _field(field: Field, number: int, chunks: list[int | bytes], depth: _Depth) -> Any:
    if field.many == "map":
        return dict(_entry(field, chunk, depth) for chunk in chunks)
    read = _READERS.get(field.type)
    if field.many == "list":
        if read in (_integer, _boolean):
            chunks = [packed for chunk in chunks for packed in _unpacked(chunk)]
        values = [_value(field.type, chunk, depth) for chunk in chunks]
        return [value for value in values if value is not None]
    # Of a scalar sent twice the last counts; two halves of a message are one.
    chunk = chunks[-1] if read else _joined({number: chunks}, number)
    return _value(field.type, chunk, depth)


def _unpacked(chunk: int | bytes) -> list[int]:
    if isinstance(chunk, int):
        return [chunk]
    numbers, position = [], 0
    while position < len(chunk):
        number, position = _varint(chunk, position)
        numbers.append(number)
    return numbers


def _entry(field: Field, chunk: int | bytes, depth: _Depth) -> tuple[str, Any]:
    if isinstance(chunk, int):
        raise ProtobufError(f"an entry of {field.name} is a number")
    wire = depth.split(chunk)
    values = wire.get(2, [b""])
    return _text(_joined(wire, 1)), _value(field.type, values[-1], depth)


def _value(kind: str, chunk: int | bytes, depth: _Depth) -> Any:
    if read := _READERS.get(kind):
        return read(chunk)
    if isinstance(chunk, int):
        raise ProtobufError(f"a number where {kind} should be")
    message = _message(kind)
    if message.special:
        return _SPECIAL[message.special](message, chunk, depth.below())
    return _object(message, chunk, depth.below())


def _is_zero(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_zero, value.values()))
    return not value


# Scalars.


def _text(chunk: int | bytes) -> str:
    if isinstance(chunk, int):
        raise ProtobufError("a number where text should be")
    try:
        return chunk.decode()
    except UnicodeDecodeError as error:
        raise ProtobufError(f"text is not UTF-8: {error.reason}") from None


def _integer(chunk: int | bytes) -> int:
    if not isinstance(chunk, int):
        raise ProtobufError("bytes where a number should be")
    return chunk - (1 << 64) if chunk >> 63 else chunk


def _short(chunk: int | bytes) -> int:
    """Return an int32: the low half of the number, whatever the high half is."""
    low = _integer(chunk) & 0xFFFF_FFFF
    return low - (1 << 32) if low >> 31 else low


def _boolean(chunk: int | bytes) -> bool:
    return _integer(chunk) != 0


def _double(chunk: int | bytes) -> float:
    if isinstance(chunk, int) or len(chunk) != 8:
        raise ProtobufError("not a 64-bit floating point number")
    (number,) = struct.unpack("<d", chunk)
    if not math.isfinite(number):
        raise ProtobufError(f"{number} has no form in JSON")
    return float(number)


def _base64(chunk: int | bytes) -> str:
    if isinstance(chunk, int):
        raise ProtobufError("a number where bytes should be")
    return base64.b64encode(chunk).decode()


_READERS: Mapping[str, Callable[[int | bytes], Any]] = {
    "string": _text,
    "bytes": _base64,
    "bool": _boolean,
    "int32": _short,
    "int64": _integer,
    "double": _double,
}


# Messages whose JSON is not an object of their fields.


def _quantity(message: MessageType, raw: bytes, depth: _Depth) -> str:
    return _object(message, raw, depth).get("string") or "0"


def _int_or_string(message: MessageType, raw: bytes, depth: _Depth) -> int | str:
    parts = _object(message, raw, depth)
    if parts.get("type", 0) == 0:
        return int(parts.get("intVal", 0))
    return str(parts.get("strVal", ""))


def _moment(
    message: MessageType, raw: bytes, depth: _Depth
) -> tuple[datetime.datetime, int] | None:
    parts = _object(message, raw, depth)
    seconds, nanos = parts.get("seconds", 0), parts.get("nanos", 0)
    if seconds == nanos == 0:
        return None  # Go's zero time, whose JSON is null
    try:
        return _EPOCH + datetime.timedelta(seconds=seconds + nanos // 10**9), nanos % 10**9
    except OverflowError:
        raise ProtobufError(f"{seconds} s is not a time between the years 1 and 9999") from None


def _time(message: MessageType, raw: bytes, depth: _Depth) -> str | None:
    moment = _moment(message, raw, depth)
    return moment and f"{moment[0].replace(tzinfo=None).isoformat()}Z"


def _micro_time(message: MessageType, raw: bytes, depth: _Depth) -> str | None:
    moment = _moment(message, raw, depth)
    return moment and f"{moment[0].replace(tzinfo=None).isoformat()}.{moment[1] // 1000:06}Z"


def _json(message: MessageType, raw: bytes, depth: _Depth) -> Any:
    (number,) = message.fields
    text = _joined(depth.split(raw), number)
    if not text:
        return None
    if is_protobuf(text):
        return _decode(text, depth)
    try:
        value = msgspec.json.decode(text)
        levels.check(value, levels.brackets(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, levels.TooDeep) as error:
        raise ProtobufError(f"embedded JSON: {error}") from None
    return value


def _list(message: MessageType, raw: bytes, depth: _Depth) -> Any:
    return _object(message, raw, depth).get("items", [])


def _schema_or_array(message: MessageType, raw: bytes, depth: _Depth) -> Any:
    parts = _object(message, raw, depth)
    return parts.get("jSONSchemas") or parts.get("schema")


def _schema_or_bool(message: MessageType, raw: bytes, depth: _Depth) -> Any:
    parts = _object(message, raw, depth)
    return parts.get("schema", parts.get("allows", False))


def _schema_or_strings(message: MessageType, raw: bytes, depth: _Depth) -> Any:
    parts = _object(message, raw, depth)
    return parts.get("property") or parts.get("schema")


_SPECIAL: Mapping[str, Callable[[MessageType, bytes, _Depth], Any]] = {
    "quantity": _quantity,
    "intOrString": _int_or_string,
    "time": _time,
    "microTime": _micro_time,
    "json": _json,
    "list": _list,
    "schemaOrArray": _schema_or_array,
    "schemaOrBool": _schema_or_bool,
    "schemaOrStrings": _schema_or_strings,
}
