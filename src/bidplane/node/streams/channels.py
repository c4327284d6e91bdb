"""Numbered channels in the messages of a WebSocket: the edge of `wire.remotecommand.Channels`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from bidplane.node.streams.pipes import Inbox, Pipe
from bidplane.wire.remotecommand import ChannelError, Channels, End
from bidplane.wire.websocket import Closed, WebSocket

_GOODBYE_SECONDS = 5.0


class ChannelOutlet:
    """A channel has no end of its own but the conversation's; v5 tells it, the others cannot."""

    def __init__(self, connection: ChannelConnection, channel: int) -> None:
        self._connection, self._channel = connection, channel

    async def write(self, data: bytes) -> None:
        await self._connection.send(self._channel, data)

    async def close(self) -> None:
        return


class ChannelConnection:
    """`run` reads until the client is gone, into the inboxes of the channels it may write to."""

    def __init__(self, pipe: Pipe, protocol: str, readable: Collection[int]) -> None:
        self._pipe, self._socket = pipe, WebSocket()
        self._codec = Channels(protocol)
        self.inboxes = {channel: Inbox() for channel in readable}
        self.gone = asyncio.Event()
        self._over = False

    def outlet(self, channel: int) -> ChannelOutlet:
        return ChannelOutlet(self, channel)

    async def send(self, channel: int, data: bytes) -> None:
        message = self._codec.encode(channel, data)
        await self._pipe.write(self._socket.send(message, text=self._codec.text))

    async def run(self) -> None:
        try:
            while received := await self._pipe.read():
                for event in self._socket.receive(received):
                    if isinstance(event, Closed):
                        self._over = True
                        return
                    await self._deliver(event.data)
                await self._pipe.write(self._socket.take_answers())
        except ChannelError:
            pass  # the client speaks something else; hanging up is all there is to say
        finally:
            await self._pipe.write(self._socket.take_answers())
            self.gone.set()
            for inbox in self.inboxes.values():
                await inbox.end()

    async def close(self) -> None:
        """Say goodbye, wait for the client's, and hang up."""
        await self._pipe.write(self._socket.close())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while not self._over and (received := await self._pipe.read()):
                    events = self._socket.receive(received)
                    self._over = any(isinstance(event, Closed) for event in events)
        self._pipe.hang_up()

    async def _deliver(self, message: bytes) -> None:
        found = self._codec.decode(message)
        inbox = self.inboxes.get(found.channel)
        if inbox is None:
            return  # a channel that is not the client's to write to
        if isinstance(found, End):
            await inbox.end()
        else:
            await inbox.put(found.data)
