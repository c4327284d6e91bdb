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
from typing import Any

from bidplane.errors import ApiError
from bidplane.node.streams.channels import ChannelConnection
from bidplane.node.streams.pipes import CHUNK, Inbox, Outlet, Pipe
from bidplane.node.streams.spdy import SpdyConnection, Stream
from bidplane.wire.remotecommand import port as parse_port

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_PAIR_SECONDS = 30.0  # until both streams of a connection are there


async def over_spdy(pipe: Pipe, connect: Connect) -> None:
    connection = SpdyConnection(pipe)
    tasks = _Tasks(connection.run())
    halves: dict[tuple[str, str], _Pair] = {}
    try:
        while (stream := await connection.accept()) is not None:
            kind = stream.headers.get("streamtype", "")
            # Without a request id (Kubernetes before 1.2) a port has one pair at a time.
            key = stream.headers.get("requestid", ""), stream.headers.get("port", "")
            pair = halves.get(key)
            if kind not in ("data", "error") or (pair is not None and kind in pair.streams):
                await stream.reset()
            elif pair is None:
                pair = halves[key] = _Pair(kind, stream)
                tasks.add(_forward_pair(pair, key[1], connect, partial(halves.pop, key)))
            else:
                pair.add(kind, stream)
    finally:
        await tasks.end()
        await connection.close()


async def over_channels(pipe: Pipe, protocol: str, ports: Sequence[int], connect: Connect) -> None:
    """Channel 2n is the data of port n, 2n + 1 its errors; each begins with the port."""
    connection = ChannelConnection(pipe, protocol, range(0, 2 * len(ports), 2))
    tasks = _Tasks(connection.run())
    try:
        for at, port in enumerate(ports):
            for channel in (2 * at, 2 * at + 1):
                await connection.send(channel, port.to_bytes(2, "little"))
            inbox, data = connection.inboxes[2 * at], connection.outlet(2 * at)
            tasks.add(_forward(inbox, data, connection.outlet(2 * at + 1), port, connect))
        await tasks.until_done()
    finally:
        await tasks.end()
        await connection.close()


class _Pair:
    def __init__(self, kind: str, stream: Stream) -> None:
        self.streams = {kind: stream}
        self.whole = asyncio.Event()

    def add(self, kind: str, stream: Stream) -> None:
        self.streams[kind] = stream
        self.whole.set()


async def _forward_pair(
    pair: _Pair, port: str, connect: Connect, forget: Callable[[], object]
) -> None:
    try:
        async with asyncio.timeout(_PAIR_SECONDS):
            await pair.whole.wait()
    except TimeoutError:
        return
    finally:
        forget()
        if not pair.whole.is_set():
            for stream in pair.streams.values():
                await stream.reset()
    data, error = pair.streams["data"], pair.streams["error"]
    number = parse_port(port)
    if number is None:
        await error.write(f"{port!r} is not a port from 1 to 65535".encode())
    else:
        going = asyncio.create_task(data.was_reset.wait())
        work = asyncio.create_task(_forward(data.inbox, data, error, number, connect))
        try:
            await asyncio.wait({going, work}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (going, work):
                task.cancel()
            await asyncio.gather(going, work, return_exceptions=True)
    # Whoever holds the other ends waits for both of these.
    await data.close()
    await error.close()


async def _forward(inbox: Inbox, data: Outlet, error: Outlet, port: int, connect: Connect) -> None:
    """One connection, until the pod has said all."""
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
    with contextlib.suppress(OSError):
        while received := await inbox.get():
            writer.write(received)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


class _Tasks:
    """What is done for one client: it ends when its connection does."""

    def __init__(self, reading: Coroutine[Any, Any, None]) -> None:
        self._reading = asyncio.create_task(reading)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_done(self) -> None:
        """Until the client is gone, or nothing is left to do for it."""
        while self._tasks and not self._reading.done():
            await asyncio.wait({self._reading, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)

    async def end(self) -> None:
        tasks = [self._reading, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
