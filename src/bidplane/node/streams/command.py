"""
The streams of a command and of its client, joined until one of the two ends.

A client that disconnects ends the command it started. A command that ends closes the connection,
after the last of its output and its exit code have been sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import msgspec
import structlog

from bidplane.errors import ApiError
from bidplane.node.api import ExecSession
from bidplane.node.streams.channels import ChannelConnection
from bidplane.node.streams.pipes import Inbox, Outlet, Pipe
from bidplane.node.streams.spdy import SpdyConnection, Stream
from bidplane.wire.streams.remotecommand import V5, Channel, Sizes, Wanted, result

_log = structlog.get_logger()
Start = Callable[[], Awaitable[ExecSession]]
_STREAM_SECONDS = 30.0  # for a SPDY client to open the streams it asked for
_QUIET_SECONDS = 1.0


class StreamConnection(Protocol):
    """A connection with the client; `disconnected` is set when the client has gone."""

    disconnected: asyncio.Event

    async def run(self) -> None: ...

    async def close(self) -> None: ...


class ClientStreams(msgspec.Struct, kw_only=True):
    """The client's ends of a command's streams; those it did not ask for are None."""

    error: Outlet
    stdin: Inbox | None = None
    stdout: Outlet | None = None
    stderr: Outlet | None = None
    resize: Inbox | None = None


async def over_websocket(pipe: Pipe, protocol: str, options: Wanted, start: Start) -> None:
    """Serve a command over the channels of a WebSocket."""
    readable = [Channel.STDIN] * options.stdin + [Channel.RESIZE] * options.tty
    connection = ChannelConnection(pipe, protocol, readable)
    streams = ClientStreams(
        error=connection.outlet(Channel.ERROR),
        stdin=connection.inboxes.get(Channel.STDIN),
        stdout=connection.outlet(Channel.STDOUT) if options.stdout else None,
        stderr=connection.outlet(Channel.STDERR) if options.stderr else None,
        resize=connection.inboxes.get(Channel.RESIZE),
    )

    async def work() -> None:
        if protocol != V5:
            # Tells older clients that the connection is established, as upstream does.
            await connection.send(_first_writable(options), b"")
        await _serve(connection, streams, protocol, start)

    await _with_reader(connection, work())


def _first_writable(options: Wanted) -> int:
    """The first channel on which the server writes."""
    if options.stdout:
        return Channel.STDOUT
    return Channel.STDERR if options.stderr else Channel.ERROR


async def over_spdy(pipe: Pipe, protocol: str, options: Wanted, start: Start) -> None:
    """Serve a command over SPDY."""
    connection = SpdyConnection(pipe)

    async def work() -> None:
        streams = await _accept_streams(connection, options.streams(protocol))
        if streams is not None:
            await _serve(connection, streams, protocol, start)

    await _with_reader(connection, work())


async def _accept_streams(connection: SpdyConnection, kinds: set[str]) -> ClientStreams | None:
    """The requested streams, once the client has opened them all; None if it does not."""
    streams: dict[str, Stream] = {}
    try:
        async with asyncio.timeout(_STREAM_SECONDS):
            while kinds - streams.keys():
                stream = await connection.accept()
                if stream is None:
                    return None
                kind = stream.headers.get("streamtype", "")
                if kind in kinds and kind not in streams:
                    streams[kind] = stream
                else:
                    await stream.reset()
    except TimeoutError:
        return None
    stdin, resize = streams.get("stdin"), streams.get("resize")
    return ClientStreams(
        error=streams["error"],
        stdin=stdin.inbox if stdin else None,
        stdout=streams.get("stdout"),
        stderr=streams.get("stderr"),
        resize=resize.inbox if resize else None,
    )


async def _with_reader(connection: StreamConnection, work: Awaitable[None]) -> None:
    """Do `work` while the connection is read, then close it."""
    reading = asyncio.create_task(connection.run())
    try:
        await work
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await connection.close()


async def _serve(
    connection: StreamConnection, streams: ClientStreams, protocol: str, start: Start
) -> None:
    """Start the command, copy its streams, and send its result."""
    outcome: int | ApiError | None
    try:
        session = await start()
    except ApiError as error:
        outcome = error
    except Exception as error:  # the user must see it, not only the log
        _log.exception("cannot start a command")
        outcome = ApiError(f"Internal error occurred: {error}")
    else:
        try:
            outcome = await _join(connection, streams, session)
        finally:
            await session.close()
    if outcome is not None and not connection.disconnected.is_set():
        await streams.error.write(result(protocol, outcome))
        for outlet in (streams.stdout, streams.stderr, streams.error):
            if outlet is not None:
                await outlet.close()


async def _join(
    connection: StreamConnection, streams: ClientStreams, session: ExecSession
) -> int | None:
    """Copy all streams and return the exit code; None if the client disconnected first."""
    outputs = _Outputs(
        (session.stdout(), streams.stdout),
        (session.stderr(), streams.stderr),
    )
    inputs = [
        asyncio.create_task(_copy_stdin(session, streams.stdin, connection.disconnected)),
        asyncio.create_task(_resize(session, streams.resize)),
    ]
    ending = asyncio.create_task(session.wait())
    disconnecting = asyncio.create_task(connection.disconnected.wait())
    try:
        await asyncio.wait({ending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            return None
        await outputs.finish(disconnecting)
        return ending.result()
    finally:
        for task in (*inputs, ending, disconnecting, *outputs.tasks):
            task.cancel()
        await asyncio.gather(*inputs, ending, disconnecting, *outputs.tasks, return_exceptions=True)


class _Outputs:
    """Copies both outputs to the end, also those that the client did not ask for."""

    def __init__(self, *pairs: tuple[AsyncIterator[bytes], Outlet | None]) -> None:
        self.tasks = [asyncio.create_task(self._copy(*pair)) for pair in pairs]
        self._passed = 0
        self._sending = 0

    async def _copy(self, source: AsyncIterator[bytes], outlet: Outlet | None) -> None:
        """Copy one output to the client."""
        async for data in source:
            self._passed += 1
            if outlet is not None:
                self._sending += 1
                try:
                    await outlet.write(data)
                finally:
                    self._sending -= 1

    async def finish(self, disconnecting: asyncio.Task[bool]) -> None:
        """
        Return when all output is sent, or the client is gone.

        A child that the command left behind may keep its output open for ever; so it also returns
        when no output came for a while and none waits to be sent.
        """
        waiting = {disconnecting, *self.tasks}
        while not all(task.done() for task in self.tasks) and not disconnecting.done():
            before = self._passed
            done, _ = await asyncio.wait(
                waiting, timeout=_QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            waiting -= done
            if not done and self._passed == before and not self._sending:
                return


async def _copy_stdin(
    session: ExecSession, stdin: Inbox | None, disconnected: asyncio.Event
) -> None:
    """Copy the client's input to the command."""
    if stdin is None:
        return
    while data := await stdin.get():
        await session.write(data)
    # A lost connection is not an end of input: an attached container keeps its stdin.
    if not disconnected.is_set():
        await session.close_stdin()


async def _resize(session: ExecSession, resize: Inbox | None) -> None:
    """Apply the client's terminal sizes."""
    if resize is None:
        return
    sizes = Sizes()
    while data := await resize.get():
        for width, height in sizes.feed(data):
            with contextlib.suppress(OSError):  # the terminal closed meanwhile
                session.resize(width, height)
