"""Byte pipes to a client, and bounded buffers between reader and writer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from bidplane.wire.streams.websocket import Closed, WebSocket

CHUNK = 64 << 10
WAITING = 256 << 10  # bytes that may wait for a slow reader before its sender is blocked
_GOODBYE_SECONDS = 5.0


class Pipe(Protocol):
    """A connection that carries plain bytes."""

    async def read(self) -> bytes:
        """Some bytes; b"" when the peer has ended, or is gone."""

    async def write(self, data: bytes) -> None:
        """Write, and return when there is room for more. Ignored when the peer is gone."""

    async def close(self) -> None:
        """Give the peer time to read the last bytes, then close the connection."""

    def hang_up(self) -> None:
        """Close the connection at once."""


class SocketPipe:
    """A pipe over the connection itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(CHUNK)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        if data and not self._writer.is_closing():
            self._writer.write(data)
            with contextlib.suppress(OSError):
                await self._writer.drain()

    async def close(self) -> None:
        # Closing with unread bytes resets the connection, and the peer may lose what was sent
        # last: so let the peer close first.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while await self.read():
                    pass
        self.hang_up()

    def hang_up(self) -> None:
        self._writer.close()


class WebSocketPipe:
    """A pipe over the messages of a WebSocket; message boundaries mean nothing."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._socket = pipe, WebSocket()
        self._ended = False

    async def read(self) -> bytes:
        while not self._ended:
            received = await self._pipe.read()
            if not received:
                break
            data = b""
            for event in self._socket.receive(received):
                if isinstance(event, Closed):
                    self._ended = True
                    break
                data += event.data
            await self._pipe.write(self._socket.take_answers())
            if data:
                return data
        self._ended = True
        return b""

    async def write(self, data: bytes) -> None:
        if data:
            await self._pipe.write(self._socket.send(data))

    async def close(self) -> None:
        await self._pipe.write(self._socket.close())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while await self.read():
                    pass
        self.hang_up()  # a WebSocket is closed once both have sent a close frame

    def hang_up(self) -> None:
        self._pipe.hang_up()


class Inbox:
    """The data that one channel received: bounded, so that a slow reader blocks its sender."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self._changed = asyncio.Condition()

    async def put(self, data: bytes) -> None:
        """Add data; returns when there is room again. Dropped when nobody will read it."""
        async with self._changed:
            if self._ended:
                return
            self._data += data
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._ended or len(self._data) < WAITING)

    async def end(self) -> None:
        """Mark the end of the data; what is here can still be read."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def get(self) -> bytes:
        """All data that came; b"" at the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended or bool(self._data))
            data = bytes(self._data)
            self._data.clear()
            self._changed.notify_all()
            return data


class Outlet(Protocol):
    """The writing end of one channel."""

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None:
        """Mark the end of the channel's data."""
