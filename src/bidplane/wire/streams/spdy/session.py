"""
The states of the streams on one SPDY connection, without I/O.

Bytes in, events out; what is to be sent is returned as bytes. Windows are read and not
kept, as Kubernetes' own library (moby/spdystream) has it: its peers never widen one, so
whoever waited for that would wait for ever. A slow reader is felt through TCP.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

import msgspec

from bidplane.wire.streams.spdy import frames
from bidplane.wire.streams.spdy.frames import Decoder, Encoder, Frame

MOST_STREAMS = 2048  # open at once; `kubectl port-forward` opens two for each connection
LARGEST_PIECE = 64 << 10


class Code(enum.IntEnum):
    """The reason of a stream's reset."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    CANCEL = 5
    INTERNAL_ERROR = 6


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The peer opened a stream; answer with `reply` or `reset`."""

    stream: int
    headers: dict[str, str]


class Replied(msgspec.Struct, frozen=True, tag=True):
    stream: int


class Received(msgspec.Struct, frozen=True, tag=True):
    stream: int
    data: bytes


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The peer sends no more on this stream; it may still read."""

    stream: int


class WasReset(msgspec.Struct, frozen=True, tag=True):
    stream: int
    code: int


class WentAway(msgspec.Struct, frozen=True, tag=True):
    """The peer opens no more streams, and takes none."""


Event = Opened | Replied | Received | Ended | WasReset | WentAway


class _State(msgspec.Struct):
    replied: bool = False
    sends: bool = True  # we may still send
    receives: bool = True  # the peer may


class Session:
    """One end of a connection. A client's streams have odd numbers, a server's even ones."""

    def __init__(self, *, client: bool) -> None:
        self._encoder, self._decoder = Encoder(), Decoder()
        self._ours = 1 if client else 0  # parity
        self._next = 1 if client else 2
        self._last = 0  # the peer's newest
        self._streams: dict[int, _State] = {}
        self._answers = bytearray()

    def __repr__(self) -> str:
        return f"<Session {'client' if self._ours else 'server'} {len(self._streams)} streams>"

    def take_answers(self) -> bytes:
        """Return and clear the pending replies to received frames: pings, resets."""
        answers = bytes(self._answers)
        self._answers.clear()
        return answers

    # Sending.

    def open(self, headers: Mapping[str, str], *, fin: bool = False) -> tuple[int, bytes]:
        stream = self._next
        self._next += 2
        self._streams[stream] = _State(sends=not fin)
        return stream, self._encoder.encode(frames.SynStream(stream, dict(headers), fin))

    def reply(self, stream: int) -> bytes:
        state = self._streams.get(stream)
        if state is None or state.replied:
            return b""
        state.replied = True
        return self._encoder.encode(frames.SynReply(stream))

    def send(self, stream: int, data: bytes, *, fin: bool = False) -> bytes:
        """Return the frames of `data`, with `fin` the last ones; empty if the stream has ended."""
        state = self._streams.get(stream)
        if state is None or not state.sends:
            return b""
        pieces = [data[at : at + LARGEST_PIECE] for at in range(0, len(data), LARGEST_PIECE)]
        sent = [self._encoder.encode(frames.Data(stream, piece)) for piece in pieces[:-1]]
        if pieces or fin:
            last = pieces[-1] if pieces else b""
            sent.append(self._encoder.encode(frames.Data(stream, last, fin)))
        if fin:
            state.sends = False
            self._forget(stream, state)
        return b"".join(sent)

    def reset(self, stream: int, code: Code = Code.CANCEL) -> bytes:
        if self._streams.pop(stream, None) is None:
            return b""
        return self._encoder.encode(frames.RstStream(stream, code))

    def go_away(self) -> bytes:
        return self._encoder.encode(frames.GoAway(self._last))

    # Receiving.

    def receive(self, data: bytes) -> Iterator[Event]:
        """Yield the events in `data`; raises `SpdyError` if the connection must be closed."""
        for frame in self._decoder.feed(data):
            yield from self._handle(frame)

    def _handle(self, frame: Frame) -> Iterator[Event]:
        match frame:
            case frames.SynStream():
                yield from self._opened(frame)
            case frames.SynReply():
                state = self._streams.get(frame.stream)
                if state is not None and not state.replied and self._is_ours(frame.stream):
                    state.replied = True
                    yield Replied(frame.stream)
                    yield from self._ended(frame.stream, frame.fin)
            case frames.Data() | frames.Headers():
                state = self._streams.get(frame.stream)
                if state is None or not state.receives:
                    return  # it was reset; what was under way is dropped
                if isinstance(frame, frames.Data) and frame.data:
                    yield Received(frame.stream, frame.data)
                yield from self._ended(frame.stream, frame.fin)
            case frames.RstStream():
                if self._streams.pop(frame.stream, None) is not None:
                    yield WasReset(frame.stream, frame.code)
            case frames.Ping():
                if frame.id % 2 != self._ours:
                    self._answers += self._encoder.encode(frame)
            case frames.GoAway():
                yield WentAway()
            case frames.WindowUpdate() | frames.Settings():
                return

    def _opened(self, frame: frames.SynStream) -> Iterator[Event]:
        stream = frame.stream
        if self._is_ours(stream) or stream <= self._last:
            self._refuse(stream, Code.PROTOCOL_ERROR)
            return
        self._last = stream
        if len(self._streams) >= MOST_STREAMS:
            self._refuse(stream, Code.REFUSED_STREAM)
            return
        self._streams[stream] = _State(sends=not frame.unidirectional)
        yield Opened(stream, frame.headers)
        yield from self._ended(stream, frame.fin)

    def _ended(self, stream: int, fin: bool) -> Iterator[Event]:
        state = self._streams.get(stream)
        if not fin or state is None:
            return
        state.receives = False
        yield Ended(stream)
        self._forget(stream, state)

    def _forget(self, stream: int, state: _State) -> None:
        if not state.sends and not state.receives:
            self._streams.pop(stream, None)

    def _refuse(self, stream: int, code: Code) -> None:
        self._answers += self._encoder.encode(frames.RstStream(stream, code))

    def _is_ours(self, stream: int) -> bool:
        return stream % 2 == self._ours
