"""Numbered channels in messages of a WebSocket, around `wire.streams.remotecommand.Channels`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from bidplane.node.streams.pipes import Inbox, Pipe
from bidplane.wire.streams.remotecommand import ChannelError, Channels, End
from bidplane.wire.streams.websocket import Closed, WebSocket

_GOODBYE_SECONDS = 5.0


class ChannelOutlet:
    """
    The writing end of a channel. A channel ends only with the connection: protocol v5 can close
    one, older ones cannot.
    """

    def __init__(self, connection: ChannelConnection, channel: int) -> None:
        self._connection, self._channel = connection, channel

    async def write(self, data: bytes) -> None:
        await self._connection.send(self._channel, data)

    async def close(self) -> None:
        return


class ChannelConnection:
    """
    A WebSocket with channels: `run` reads until the client is gone, into the inboxes of the
    channels that it may write to.
    """

    def __init__(self, pipe: Pipe, protocol: str, readable: Collection[int]) -> None:
        self._pipe, self._socket = pipe, WebSocket()
        self._codec = Channels(protocol)
        self.inboxes = {channel: Inbox() for channel in readable}
        self.disconnected = asyncio.Event()
        self._closed = False

    def outlet(self, channel: int) -> ChannelOutlet:
        """The writing end of a channel."""
        return ChannelOutlet(self, channel)

    async def send(self, channel: int, data: bytes) -> None:
        message = self._codec.encode(channel, data)
        await self._pipe.write(self._socket.send(message, text=self._codec.text))

    async def run(self) -> None:
        try:
            while received := await self._pipe.read():
                for event in self._socket.receive(received):
                    if isinstance(event, Closed):
                        self._closed = True
                        return
                    await self._deliver(event.data)
                await self._pipe.write(self._socket.take_answers())
        except ChannelError:
            pass  # the client does not speak this protocol: close the connection
        finally:
            await self._pipe.write(self._socket.take_answers())
            self.disconnected.set()
            for inbox in self.inboxes.values():
                await inbox.end()

    async def close(self) -> None:
        """Send a close frame, wait for the client's, and close the connection."""
        await self._pipe.write(self._socket.close())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while not self._closed and (received := await self._pipe.read()):
                    events = self._socket.receive(received)
                    self._closed = any(isinstance(event, Closed) for event in events)
        self._pipe.hang_up()

    async def _deliver(self, message: bytes) -> None:
        """Put a message into its channel's inbox."""
        channel_message = self._codec.decode(message)
        inbox = self.inboxes.get(channel_message.channel)
        if inbox is None:
            return  # the client may not write to this channel
        if isinstance(channel_message, End):
            await inbox.end()
        else:
            await inbox.put(channel_message.data)
