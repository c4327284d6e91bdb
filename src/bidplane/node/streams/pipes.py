"""Bytes to and from a client, and what waits between the two."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from bidplane.wire.websocket import Closed, WebSocket

CHUNK = 64 << 10
WAITING = 256 << 10  # bytes that may wait for a slow reader before its sender is held
_GOODBYE_SECONDS = 5.0


class Pipe(Protocol):
    """A connection that carries plain bytes."""

    async def read(self) -> bytes:
        """Some bytes; none when the peer has ended, or is gone."""

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more. Nothing happens when the peer is gone."""

    async def close(self) -> None:
        """Give the peer time to hear what was said last, and hang up."""

    def hang_up(self) -> None:
        """The peer has heard all, or never will."""


class SocketPipe:
    """The connection itself."""

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
        # Whoever hangs up on unread bytes resets the connection, and what was sent last
        # may never be read: so the peer goes first.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while await self.read():
                    pass
        self.hang_up()

    def hang_up(self) -> None:
        self._writer.close()


class WebSocketPipe:
    """Bytes in the messages of a WebSocket, wherever they are cut."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._socket = pipe, WebSocket()
        self._over = False

    async def read(self) -> bytes:
        while not self._over:
            received = await self._pipe.read()
            if not received:
                break
            data = b""
            for event in self._socket.receive(received):
                if isinstance(event, Closed):
                    self._over = True
                    break
                data += event.data
            await self._pipe.write(self._socket.take_answers())
            if data:
                return data
        self._over = True
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
        self.hang_up()  # a WebSocket is over when both have said so

    def hang_up(self) -> None:
        self._pipe.hang_up()


class Inbox:
    """What one channel received: bounded, so that a slow reader holds its sender."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._over = False
        self._changed = asyncio.Condition()

    async def put(self, data: bytes) -> None:
        """Returns when there is room again; dropped when nobody will read it."""
        async with self._changed:
            if self._over:
                return
            self._data += data
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._over or len(self._data) < WAITING)

    async def end(self) -> None:
        """Nothing follows; what is here can still be read."""
        async with self._changed:
            self._over = True
            self._changed.notify_all()

    async def get(self) -> bytes:
        """Everything that came; nothing when that was all."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._over or bool(self._data))
            data = bytes(self._data)
            self._data.clear()
            self._changed.notify_all()
            return data


class Outlet(Protocol):
    """Where one channel's data goes."""

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None:
        """Nothing follows on this channel."""
