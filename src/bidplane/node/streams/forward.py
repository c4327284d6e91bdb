"""
Port-forward: connections into a pod, carried as streams.

Over SPDY (also inside a WebSocket) each connection is two streams with one request id: its
data, and an error stream that stays empty when all went well. Over the channels of an
older WebSocket the ports are named beforehand and each has one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial

from bidplane.errors import ApiError
from bidplane.node.streams.channels import ChannelConnection
from bidplane.node.streams.pipes import CHUNK, Inbox, Outlet, Pipe
from bidplane.node.streams.spdy import SpdyConnection, Stream
from bidplane.wire.streams.remotecommand import port as parse_port

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_PAIR_SECONDS = 30.0  # until both streams of a connection are there


async def over_spdy(pipe: Pipe, connect: Connect) -> None:
    """Serve port-forward connections over SPDY."""
    connection = SpdyConnection(pipe)
    tasks = _Tasks(connection.run())
    pairs: dict[tuple[str, str], _Pair] = {}
    try:
        while (stream := await connection.accept()) is not None:
            kind = stream.headers.get("streamtype", "")
            # Without a request id (Kubernetes before 1.2) a port has one pair at a time.
            key = stream.headers.get("requestid", ""), stream.headers.get("port", "")
            pair = pairs.get(key)
            if kind not in ("data", "error") or (pair is not None and kind in pair.streams):
                await stream.reset()
            elif pair is None:
                pair = pairs[key] = _Pair(kind, stream)
                tasks.add(_forward_pair(pair, key[1], connect, partial(pairs.pop, key)))
            else:
                pair.add(kind, stream)
    finally:
        await tasks.end()
        await connection.close()


async def over_channels(pipe: Pipe, protocol: str, ports: Sequence[int], connect: Connect) -> None:
    """
    Serve port-forward over channels: 2n is the data of port n, 2n + 1 its errors; each begins with
    the port.
    """
    connection = ChannelConnection(pipe, protocol, range(0, 2 * len(ports), 2))
    tasks = _Tasks(connection.run())
    try:
        for number, port in enumerate(ports):
            for channel in (2 * number, 2 * number + 1):
                await connection.send(channel, port.to_bytes(2, "little"))
            inbox, data = connection.inboxes[2 * number], connection.outlet(2 * number)
            tasks.add(_forward(inbox, data, connection.outlet(2 * number + 1), port, connect))
        await tasks.until_done()
    finally:
        await tasks.end()
        await connection.close()


class _Pair:
    """The data and error streams of one connection."""

    def __init__(self, kind: str, stream: Stream) -> None:
        self.streams = {kind: stream}
        self.complete = asyncio.Event()

    def add(self, kind: str, stream: Stream) -> None:
        self.streams[kind] = stream
        self.complete.set()


async def _forward_pair(
    pair: _Pair, port: str, connect: Connect, forget: Callable[[], object]
) -> None:
    """
    Forward a connection once both its streams are open; reset the stream if the other does not
    come.
    """
    try:
        async with asyncio.timeout(_PAIR_SECONDS):
            await pair.complete.wait()
    except TimeoutError:
        return
    finally:
        forget()
        if not pair.complete.is_set():
            for stream in pair.streams.values():
                await stream.reset()
    data, error = pair.streams["data"], pair.streams["error"]
    number = parse_port(port)
    if number is None:
        await error.write(f"{port!r} is not a port from 1 to 65535".encode())
    else:
        resetting = asyncio.create_task(data.was_reset.wait())
        work = asyncio.create_task(_forward(data.inbox, data, error, number, connect))
        try:
            await asyncio.wait({resetting, work}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (resetting, work):
                task.cancel()
            await asyncio.gather(resetting, work, return_exceptions=True)
    # The client waits until both streams are closed.
    await data.close()
    await error.close()


async def _forward(inbox: Inbox, data: Outlet, error: Outlet, port: int, connect: Connect) -> None:
    """Forward one connection until the pod closes it."""
    try:
        reader, writer = await connect(port)
    except (ApiError, OSError) as refused:
        await error.write(f"error forwarding port {port} to the pod: {refused}".encode())
        return
    sending = asyncio.create_task(_send(inbox, writer))
    try:
        while received := await reader.read(CHUNK):
            await data.write(received)
    except OSError as broken:
        await error.write(f"the connection to port {port} of the pod broke: {broken}".encode())
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def _send(inbox: Inbox, writer: asyncio.StreamWriter) -> None:
    """Copy the client's data to the pod."""
    with contextlib.suppress(OSError):
        while received := await inbox.get():
            writer.write(received)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


class _Tasks:
    """The tasks of one client, cancelled with its connection."""

    def __init__(self, reading: Coroutine[object, object, None]) -> None:
        self._reading = asyncio.create_task(reading)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_done(self) -> None:
        """Wait until the client is gone, or all its tasks are done."""
        while self._tasks and not self._reading.done():
            await asyncio.wait({self._reading, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)

    async def end(self) -> None:
        tasks = [self._reading, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
