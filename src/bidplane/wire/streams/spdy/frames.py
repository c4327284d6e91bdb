"""
SPDY/3.1 frames to bytes and back.

A data frame may announce 16 MiB: it is handed on in the pieces that arrive, so nothing
here holds more than one control frame. Header blocks share one zlib context per
direction, so frames must be encoded and decoded in the order they are sent.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import msgspec

from bidplane.wire.streams.spdy.dictionary import DICTIONARY

LARGEST_DATA = (1 << 24) - 1
LARGEST_CONTROL = 64 << 10
LARGEST_BLOCK = 256 << 10  # a header block, once it is unpacked
_VERSION = 3
_CONTROL = 0x8000
_FIN, _UNIDIRECTIONAL = 1, 2
_STREAM_MASK = 0x7FFFFFFF


class SpdyError(Exception):
    """Invalid SPDY/3.1 from the peer; the connection must be closed."""


class SynStream(msgspec.Struct, frozen=True, tag=True):
    stream: int
    headers: dict[str, str]
    fin: bool = False
    unidirectional: bool = False


class SynReply(msgspec.Struct, frozen=True, tag=True):
    stream: int
    headers: dict[str, str] = {}
    fin: bool = False


class Headers(msgspec.Struct, frozen=True, tag=True):
    stream: int
    headers: dict[str, str]
    fin: bool = False


class Data(msgspec.Struct, frozen=True, tag=True):
    stream: int
    data: bytes
    fin: bool = False


class RstStream(msgspec.Struct, frozen=True, tag=True):
    stream: int
    code: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    id: int


class GoAway(msgspec.Struct, frozen=True, tag=True):
    last: int
    code: int = 0


class WindowUpdate(msgspec.Struct, frozen=True, tag=True):
    stream: int
    delta: int


class Settings(msgspec.Struct, frozen=True, tag=True):
    """A SETTINGS frame, which we ignore: none of its settings affects our streams."""

    raw: bytes


Frame = SynStream | SynReply | Headers | Data | RstStream | Ping | GoAway | WindowUpdate | Settings


class Encoder:
    def __init__(self) -> None:
        self._pack = zlib.compressobj(zdict=DICTIONARY)

    def encode(self, frame: Frame) -> bytes:
        match frame:
            case Data():
                if len(frame.data) > LARGEST_DATA:
                    raise ValueError(f"a data frame holds at most {LARGEST_DATA} bytes")
                head = frame.stream.to_bytes(4, "big") + _tail(frame.fin, len(frame.data))
                return head + frame.data
            case SynStream():
                flags = _FIN * frame.fin | _UNIDIRECTIONAL * frame.unidirectional
                # No associated stream, and the highest priority for all.
                body = frame.stream.to_bytes(4, "big") + bytes(6) + self._block(frame.headers)
                return _control(1, flags, body)
            case SynReply():
                body = frame.stream.to_bytes(4, "big") + self._block(frame.headers)
                return _control(2, _FIN * frame.fin, body)
            case RstStream():
                return _control(3, 0, _words(frame.stream, frame.code))
            case Settings():
                return _control(4, 0, frame.raw)
            case Ping():
                return _control(6, 0, _words(frame.id))
            case GoAway():
                return _control(7, 0, _words(frame.last, frame.code))
            case Headers():
                body = frame.stream.to_bytes(4, "big") + self._block(frame.headers)
                return _control(8, _FIN * frame.fin, body)
            case WindowUpdate():
                return _control(9, 0, _words(frame.stream, frame.delta))

    def _block(self, headers: Mapping[str, str]) -> bytes:
        parts = [len(headers).to_bytes(4, "big")]
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                parts += [len(text).to_bytes(4, "big"), text]
        return self._pack.compress(b"".join(parts)) + self._pack.flush(zlib.Z_SYNC_FLUSH)


class Decoder:
    """A decoder of frames from bytes in pieces of any size."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(zdict=DICTIONARY)
        self._buffer = bytearray()
        self._data: tuple[int, int, bool] | None = None  # stream, bytes to come, fin

    def feed(self, received: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes; raises `SpdyError`."""
        self._buffer += received
        while True:
            if self._data is not None:
                piece = self._piece(*self._data)
                if piece is None:
                    return
                yield piece
                continue
            if len(self._buffer) < 8:
                return
            first = int.from_bytes(self._buffer[:4], "big")
            flags, length = self._buffer[4], int.from_bytes(self._buffer[5:8], "big")
            if not first & _CONTROL << 16:
                if first == 0:
                    raise SpdyError("data for stream 0")
                del self._buffer[:8]
                self._data = first, length, bool(flags & _FIN)
                continue
            if length > LARGEST_CONTROL:
                raise SpdyError(f"a control frame of {length} bytes; the most is {LARGEST_CONTROL}")
            if len(self._buffer) < 8 + length:
                return
            body = bytes(self._buffer[8 : 8 + length])
            del self._buffer[: 8 + length]
            version = first >> 16 & 0x7FFF
            if version != _VERSION:
                raise SpdyError(f"version {version} of SPDY; only {_VERSION} is spoken here")
            yield self._read(first & 0xFFFF, flags, body)

    def _piece(self, stream: int, remaining: int, fin: bool) -> Data | None:
        if remaining and not self._buffer:
            return None
        data = bytes(self._buffer[:remaining])
        del self._buffer[:remaining]
        remaining -= len(data)
        self._data = (stream, remaining, fin) if remaining else None
        return Data(stream, data, fin and not remaining)

    def _read(self, kind: int, flags: int, body: bytes) -> Frame:
        fin = bool(flags & _FIN)
        match kind:
            case 1:
                stream = _word(body, 0, at_least=10)
                headers = self._headers(body[10:])
                return SynStream(_id(stream), headers, fin, bool(flags & _UNIDIRECTIONAL))
            case 2:
                return SynReply(_id(_word(body, 0)), self._headers(body[4:]), fin)
            case 3:
                return RstStream(_id(_word(body, 0)), _word(body, 4))
            case 4:
                return Settings(body)
            case 6:
                return Ping(_word(body, 0))
            case 7:
                return GoAway(_word(body, 0) & _STREAM_MASK, _word(body, 4))
            case 8:
                return Headers(_id(_word(body, 0)), self._headers(body[4:]), fin)
            case 9:
                return WindowUpdate(_word(body, 0) & _STREAM_MASK, _word(body, 4) & _STREAM_MASK)
            case _:
                raise SpdyError(f"a control frame of type {kind}, which does not exist")

    def _headers(self, packed: bytes) -> dict[str, str]:
        try:
            block = self._unpack.decompress(packed, LARGEST_BLOCK)
        except zlib.error as error:
            raise SpdyError(f"headers that cannot be unpacked: {error}") from error
        if self._unpack.unconsumed_tail:
            raise SpdyError(f"more than {LARGEST_BLOCK} bytes of headers")
        headers: dict[str, str] = {}
        at = 4
        for _ in range(_word(block, 0)):
            texts = []
            for _ in range(2):
                length = _word(block, at)
                end = at + 4 + length
                if end > len(block):
                    raise SpdyError("headers that end too early")
                texts.append(block[at + 4 : end].decode(errors="replace"))
                at = end
            headers[texts[0]] = texts[1]
        return headers


def _control(kind: int, flags: int, body: bytes) -> bytes:
    head = ((_CONTROL | _VERSION) << 16 | kind).to_bytes(4, "big")
    return head + _tail(flags, len(body)) + body


def _tail(flags: int, length: int) -> bytes:
    return (int(flags) << 24 | length).to_bytes(4, "big")


def _words(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in values)


def _word(body: bytes, at: int, *, at_least: int = 0) -> int:
    if len(body) < max(at + 4, at_least):
        raise SpdyError("a frame that ends too early")
    return int.from_bytes(body[at : at + 4], "big")


def _id(word: int) -> int:
    stream = word & _STREAM_MASK
    if stream == 0:
        raise SpdyError("stream 0, which does not exist")
    return stream
