"""Many streams on one pipe: the I/O around `wire.streams.spdy`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bidplane.node.streams.pipes import Inbox, Pipe
from bidplane.wire.streams.spdy import session as spdy
from bidplane.wire.streams.spdy.frames import SpdyError
from bidplane.wire.streams.spdy.session import Session


class Stream:
    """One stream that the peer opened."""

    def __init__(self, connection: SpdyConnection, id: int, headers: Mapping[str, str]) -> None:
        self._connection, self._id = connection, id
        self.headers = headers
        self.inbox = Inbox()
        self.was_reset = asyncio.Event()  # set when the peer reset the stream
        self._sends, self.ended = True, False

    async def read(self) -> bytes:
        return await self.inbox.get()

    async def write(self, data: bytes) -> None:
        await self._connection.send(self._connection.session.send(self._id, data))

    async def close(self) -> None:
        self._sends = False
        await self._connection.send(self._connection.session.send(self._id, b"", fin=True))
        self.forget_if_over()

    def forget_if_over(self) -> None:
        """Forget the stream once both sides have ended it."""
        if self.ended and not self._sends:
            self._connection.forget(self._id)

    async def reset(self) -> None:
        await self.inbox.end()
        await self._connection.send(self._connection.session.reset(self._id))
        self._connection.forget(self._id)


class SpdyConnection:
    """
    The server's end of a connection. `run` reads until the peer is gone; meanwhile `accept`
    returns the streams that it opens.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.session = Session(client=False)
        self._streams: dict[int, Stream] = {}
        self._opened: asyncio.Queue[Stream | None] = asyncio.Queue()
        self.disconnected = asyncio.Event()

    async def accept(self) -> Stream | None:
        """The next stream; None when there will be no more."""
        return await self._opened.get()

    async def run(self) -> None:
        try:
            while received := await self._pipe.read():
                for event in self.session.receive(received):
                    await self._handle(event)
                await self.send(self.session.take_answers())
        except SpdyError:
            self._pipe.hang_up()  # the peer does not speak SPDY
        finally:
            self.disconnected.set()
            self._opened.put_nowait(None)
            for stream in list(self._streams.values()):
                await stream.inbox.end()

    async def send(self, data: bytes) -> None:
        await self._pipe.write(data)

    def forget(self, id: int) -> None:
        """Forget a stream."""
        self._streams.pop(id, None)

    async def close(self) -> None:
        await self.send(self.session.go_away())
        await self._pipe.close()

    async def _handle(self, event: spdy.Event) -> None:
        """Handle one event of the session."""
        match event:
            case spdy.Opened():
                stream = self._streams[event.stream] = Stream(self, event.stream, event.headers)
                await self.send(self.session.reply(event.stream))
                self._opened.put_nowait(stream)
            case spdy.Received():
                if (open_stream := self._streams.get(event.stream)) is not None:
                    await open_stream.inbox.put(event.data)
            case spdy.Ended():
                if (open_stream := self._streams.get(event.stream)) is not None:
                    open_stream.ended = True
                    await open_stream.inbox.end()
                    open_stream.forget_if_over()
            case spdy.WasReset():
                if (open_stream := self._streams.pop(event.stream, None)) is not None:
                    open_stream.was_reset.set()
                    await open_stream.inbox.end()
            case spdy.Replied() | spdy.WentAway():
                pass  # we open no streams; and a peer that goes away disconnects
