"""Many streams on one pipe: the edge of `wire.spdy`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bidplane.node.streams.pipes import Inbox, Pipe
from bidplane.wire.spdy import session as spdy
from bidplane.wire.spdy.frames import SpdyError
from bidplane.wire.spdy.session import Session


class Stream:
    """One stream the peer opened."""

    def __init__(self, connection: SpdyConnection, id: int, headers: Mapping[str, str]) -> None:
        self._connection, self._id = connection, id
        self.headers = headers
        self.inbox = Inbox()
        self.was_reset = asyncio.Event()  # by the peer: it wants no more of this
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
        if self.ended and not self._sends:
            self._connection.forget(self._id)

    async def reset(self) -> None:
        await self.inbox.end()
        await self._connection.send(self._connection.session.reset(self._id))
        self._connection.forget(self._id)


class SpdyConnection:
    """
    The server's end. `run` reads until the peer is gone; meanwhile `accept` gives the
    streams it opens.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.session = Session(client=False)
        self._streams: dict[int, Stream] = {}
        self._opened: asyncio.Queue[Stream | None] = asyncio.Queue()
        self.gone = asyncio.Event()

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
            self._pipe.hang_up()  # the peer speaks something else: there is nothing to say
        finally:
            self.gone.set()
            self._opened.put_nowait(None)
            for stream in list(self._streams.values()):
                await stream.inbox.end()

    async def send(self, data: bytes) -> None:
        await self._pipe.write(data)

    def forget(self, id: int) -> None:
        self._streams.pop(id, None)

    async def close(self) -> None:
        await self.send(self.session.go_away())
        await self._pipe.close()

    async def _handle(self, event: spdy.Event) -> None:
        match event:
            case spdy.Opened():
                stream = self._streams[event.stream] = Stream(self, event.stream, event.headers)
                await self.send(self.session.reply(event.stream))
                self._opened.put_nowait(stream)
            case spdy.Received():
                if (found := self._streams.get(event.stream)) is not None:
                    await found.inbox.put(event.data)
            case spdy.Ended():
                if (found := self._streams.get(event.stream)) is not None:
                    found.ended = True
                    await found.inbox.end()
                    found.forget_if_over()
            case spdy.WasReset():
                if (found := self._streams.pop(event.stream, None)) is not None:
                    found.was_reset.set()
                    await found.inbox.end()
            case spdy.Replied() | spdy.WentAway():
                pass  # we open no streams; and who goes away hangs up
