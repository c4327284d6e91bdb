"""
A command's streams and the client's, joined until one of the two ends.

Whoever is gone takes what was made for it along: a client that hangs up ends the command
it started, and a command that ends hangs up, after the last of its output and its exit
code have been sent.
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
from bidplane.wire.remotecommand import V5, Channel, Sizes, Wanted, result

_log = structlog.get_logger()
Start = Callable[[], Awaitable[ExecSession]]
_STREAM_SECONDS = 30.0  # until a SPDY client has opened what it asked for
_QUIET_SECONDS = 1.0


class Connection(Protocol):
    gone: asyncio.Event

    async def run(self) -> None: ...

    async def close(self) -> None: ...


class Ends(msgspec.Struct, kw_only=True):
    """The client's ends of a command's streams; those it did not ask for are None."""

    error: Outlet
    stdin: Inbox | None = None
    stdout: Outlet | None = None
    stderr: Outlet | None = None
    resize: Inbox | None = None


async def over_websocket(pipe: Pipe, protocol: str, wanted: Wanted, start: Start) -> None:
    readable = [Channel.STDIN] * wanted.stdin + [Channel.RESIZE] * wanted.tty
    connection = ChannelConnection(pipe, protocol, readable)
    ends = Ends(
        error=connection.outlet(Channel.ERROR),
        stdin=connection.inboxes.get(Channel.STDIN),
        stdout=connection.outlet(Channel.STDOUT) if wanted.stdout else None,
        stderr=connection.outlet(Channel.STDERR) if wanted.stderr else None,
        resize=connection.inboxes.get(Channel.RESIZE),
    )

    async def work() -> None:
        if protocol != V5:
            # Tells older clients that the connection stands, as upstream does.
            await connection.send(_first_writable(wanted), b"")
        await _serve(connection, ends, protocol, start)

    await _with_reader(connection, work())


def _first_writable(wanted: Wanted) -> int:
    if wanted.stdout:
        return Channel.STDOUT
    return Channel.STDERR if wanted.stderr else Channel.ERROR


async def over_spdy(pipe: Pipe, protocol: str, wanted: Wanted, start: Start) -> None:
    connection = SpdyConnection(pipe)

    async def work() -> None:
        ends = await _opened(connection, wanted.streams(protocol))
        if ends is not None:
            await _serve(connection, ends, protocol, start)

    await _with_reader(connection, work())


async def _opened(connection: SpdyConnection, wanted: set[str]) -> Ends | None:
    """The streams that were asked for, once the client has opened them all."""
    found: dict[str, Stream] = {}
    try:
        async with asyncio.timeout(_STREAM_SECONDS):
            while wanted - found.keys():
                stream = await connection.accept()
                if stream is None:
                    return None
                kind = stream.headers.get("streamtype", "")
                if kind in wanted and kind not in found:
                    found[kind] = stream
                else:
                    await stream.reset()
    except TimeoutError:
        return None
    stdin, resize = found.get("stdin"), found.get("resize")
    return Ends(
        error=found["error"],
        stdin=stdin.inbox if stdin else None,
        stdout=found.get("stdout"),
        stderr=found.get("stderr"),
        resize=resize.inbox if resize else None,
    )


async def _with_reader(connection: Connection, work: Awaitable[None]) -> None:
    reading = asyncio.create_task(connection.run())
    try:
        await work
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await connection.close()


async def _serve(connection: Connection, ends: Ends, protocol: str, start: Start) -> None:
    outcome: int | ApiError | None
    try:
        session = await start()
    except ApiError as error:
        outcome = error
    except Exception as error:  # whoever typed must hear of it, not only the log
        _log.exception("cannot start a command")
        outcome = ApiError(f"Internal error occurred: {error}")
    else:
        try:
            outcome = await _join(connection, ends, session)
        finally:
            await session.close()
    if outcome is not None and not connection.gone.is_set():
        await ends.error.write(result(protocol, outcome))
        for outlet in (ends.stdout, ends.stderr, ends.error):
            if outlet is not None:
                await outlet.close()


async def _join(connection: Connection, ends: Ends, session: ExecSession) -> int | None:
    """The exit code; None when the client went first."""
    outputs = _Outputs(
        (session.stdout(), ends.stdout),
        (session.stderr(), ends.stderr),
    )
    inputs = [
        asyncio.create_task(_type(session, ends.stdin, connection.gone)),
        asyncio.create_task(_resize(session, ends.resize)),
    ]
    ending = asyncio.create_task(session.wait())
    going = asyncio.create_task(connection.gone.wait())
    try:
        await asyncio.wait({ending, going}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            return None
        await outputs.finish(going)
        return ending.result()
    finally:
        for task in (*inputs, ending, going, *outputs.tasks):
            task.cancel()
        await asyncio.gather(*inputs, ending, going, *outputs.tasks, return_exceptions=True)


class _Outputs:
    """Both outputs, read to the end, whether the client wants them or not."""

    def __init__(self, *pairs: tuple[AsyncIterator[bytes], Outlet | None]) -> None:
        self.tasks = [asyncio.create_task(self._copy(*pair)) for pair in pairs]
        self._passed = 0
        self._sending = 0

    async def _copy(self, source: AsyncIterator[bytes], outlet: Outlet | None) -> None:
        async for data in source:
            self._passed += 1
            if outlet is not None:
                self._sending += 1
                try:
                    await outlet.write(data)
                finally:
                    self._sending -= 1

    async def finish(self, going: asyncio.Task[bool]) -> None:
        """
        Return when all has been passed on, or the client is gone.

        A child the command left behind may hold its output open for ever; when nothing
        has come for a while and nothing waits to be sent, that was all.
        """
        waiting = {going, *self.tasks}
        while not all(task.done() for task in self.tasks) and not going.done():
            before = self._passed
            done, _ = await asyncio.wait(
                waiting, timeout=_QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            waiting -= done
            if not done and self._passed == before and not self._sending:
                return


async def _type(session: ExecSession, stdin: Inbox | None, gone: asyncio.Event) -> None:
    if stdin is None:
        return
    while data := await stdin.get():
        await session.write(data)
    # Who is cut off has not said that it is done: what it was attached to reads on.
    if not gone.is_set():
        await session.close_stdin()


async def _resize(session: ExecSession, resize: Inbox | None) -> None:
    if resize is None:
        return
    sizes = Sizes()
    while data := await resize.get():
        for width, height in sizes.feed(data):
            with contextlib.suppress(OSError):  # the terminal closed meanwhile
                session.resize(width, height)
