"""
WebSockets (RFC 6455) without the socket: the handshake, and messages to bytes and back.

The frames are wsproto's. A message larger than `LARGEST_MESSAGE` ends the conversation:
Kubernetes' clients send at most 32 KiB at a time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from wsproto import events
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.utilities import RemoteProtocolError

LARGEST_MESSAGE = 4 << 20
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
NORMAL, TOO_LARGE, PROTOCOL_ERROR = 1000, 1009, 1002


class HandshakeError(Exception):
    """A request that is no opening handshake; the message names the problem."""


def accept(headers: Mapping[bytes, bytes], protocol: str) -> list[tuple[str, str]]:
    """Return the headers of the 101 response to a handshake; raises `HandshakeError`."""
    version = headers.get(b"sec-websocket-version", b"").strip()
    if version != b"13":
        raise HandshakeError("Sec-WebSocket-Version must be 13")
    key = headers.get(b"sec-websocket-key", b"").strip()
    try:
        nonce = base64.b64decode(key, validate=True)
    except binascii.Error:
        nonce = b""
    if len(nonce) != 16:
        raise HandshakeError("Sec-WebSocket-Key must be 16 bytes in base64")
    digest = hashlib.sha1(key + _GUID, usedforsecurity=False).digest()
    handshake = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", base64.b64encode(digest).decode()),
    ]
    return [*handshake, ("Sec-WebSocket-Protocol", protocol)] if protocol else handshake


def offered(header: str) -> list[str]:
    """Return the protocols in a `Sec-WebSocket-Protocol` header, in the client's order."""
    return [name for part in header.split(",") if (name := part.strip())]


def choose(theirs: Sequence[str], ours: Sequence[str]) -> str | None:
    """Return the first of the client's protocols that we support."""
    return next((name for name in theirs if name in ours), None)


class Message(msgspec.Struct, frozen=True, tag=True):
    data: bytes
    text: bool = False


class Closed(msgspec.Struct, frozen=True, tag=True):
    code: int


Event = Message | Closed


class WebSocket:
    """One end of a WebSocket, after the handshake."""

    def __init__(self, *, client: bool = False) -> None:
        self._connection = Connection(ConnectionType.CLIENT if client else ConnectionType.SERVER)
        self._parts: list[bytes] = []
        self._size = 0
        self._answers = bytearray()

    @property
    def is_open(self) -> bool:
        return self._connection.state is ConnectionState.OPEN

    def send(self, data: bytes, *, text: bool = False) -> bytes:
        if not self.is_open:
            return b""
        if text:
            return self._connection.send(events.TextMessage(data.decode()))
        return self._connection.send(events.BytesMessage(data))

    def close(self, code: int = NORMAL) -> bytes:
        if self._connection.state not in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            return b""
        return self._connection.send(events.CloseConnection(code))

    def take_answers(self) -> bytes:
        """Return and clear the pending replies to received messages: pongs, a close."""
        answers = bytes(self._answers)
        self._answers.clear()
        return answers

    def receive(self, data: bytes) -> Iterator[Event]:
        """Yield the events in `data`; `Closed` is the last one."""
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                yield from self._handle(event)
        except RemoteProtocolError:
            self._answers += self.close(PROTOCOL_ERROR)
            yield Closed(PROTOCOL_ERROR)

    def _handle(self, event: events.Event) -> Iterator[Event]:
        match event:
            case events.BytesMessage() | events.TextMessage():
                text = isinstance(event, events.TextMessage)
                piece = event.data.encode() if isinstance(event.data, str) else bytes(event.data)
                self._parts.append(piece)
                self._size += len(piece)
                if self._size > LARGEST_MESSAGE:
                    self._parts.clear()
                    self._answers += self.close(TOO_LARGE)
                    yield Closed(TOO_LARGE)
                elif event.message_finished:
                    whole = b"".join(self._parts)
                    self._parts.clear()
                    self._size = 0
                    yield Message(whole, text)
            case events.Ping():
                if self.is_open:
                    self._answers += self._connection.send(event.response())
            case events.CloseConnection():
                self._answers += self.close(event.code if 1000 <= event.code < 5000 else NORMAL)
                yield Closed(event.code)
