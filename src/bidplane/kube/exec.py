"""A command in a pod, as `kubectl exec` runs it: over a WebSocket of the API server."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from bidplane.errors import ApiError
from bidplane.http.client.caller import NoAnswer, trust
from bidplane.http.client.upgraded import Streams, open_upgraded
from bidplane.wire.streams import websocket
from bidplane.wire.streams.remotecommand import V4, Channel, ChannelData, Channels

_MOST_OUTPUT = 64 << 10


class PodCommandResult(msgspec.Struct, frozen=True):
    """The exit code of a command, and the first 64 KiB of its output."""

    code: int
    output: str


class PodCommands:
    """Runs commands in pods, through the API server at `url`."""

    def __init__(self, url: str, *, token: Callable[[], str], ca_file: str | None = None) -> None:
        self._parts = urlsplit(url.rstrip("/"))
        self._token = token
        self._trust: ssl.SSLContext | None = None
        if self._parts.scheme == "https":
            self._trust = trust(ca_file=ca_file)

    async def run(
        self, namespace: str, pod: str, container: str, command: Sequence[str], *, seconds: float
    ) -> PodCommandResult:
        """
        Run a command and return its result. Raises `ApiError` if it was refused, `NoAnswer` if the
        connection broke, and `TimeoutError`.
        """
        async with asyncio.timeout(seconds):
            head, (reader, writer) = await self._open(namespace, pod, container, command)
            del head
            try:
                return await _result(reader, writer)
            except OSError as error:
                raise NoAnswer(str(error)) from error
            finally:
                writer.close()

    async def _open(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> tuple[bytes, Streams]:
        query = [("stdout", "true"), ("stderr", "true")]
        query += [("container", container)] if container else []
        query += [("command", word) for word in command]
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec"
        port = self._parts.port or (443 if self._trust is not None else 80)
        headers = [
            (b"Host", self._parts.netloc.encode()),
            (b"Authorization", b"Bearer " + self._token().encode()),
            (b"Sec-WebSocket-Version", b"13"),
            (b"Sec-WebSocket-Key", base64.b64encode(os.urandom(16))),
            (b"Sec-WebSocket-Protocol", V4.encode()),
        ]
        target = f"{self._parts.path}{path}?{urlencode(query)}"
        host = self._parts.hostname or ""
        return await open_upgraded(
            host, port, target, "websocket", trust=self._trust, headers=headers
        )


async def _result(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> PodCommandResult:
    socket, channels, output = websocket.WebSocket(client=True), Channels(V4), bytearray()
    while data := await reader.read(64 << 10):
        for event in socket.receive(data):
            if isinstance(event, websocket.Closed):
                raise NoAnswer("the connection was closed before the command's exit code")
            match channels.decode(event.data):
                case ChannelData(channel=Channel.ERROR, data=status) if status:
                    return PodCommandResult(_exit_code(status), output.decode("utf-8", "replace"))
                case ChannelData(channel=Channel.STDOUT | Channel.STDERR, data=text):
                    output += text[: _MOST_OUTPUT - len(output)]
        if answers := socket.take_answers():
            writer.write(answers)
    raise NoAnswer("the connection ended before the command's exit code")


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: list[_Cause] = []


class _Status(msgspec.Struct, frozen=True):
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details = _Details()


def _exit_code(data: bytes) -> int:
    """Return the exit code in the last message of a command; raises `ApiError` if none ran."""
    try:
        status = msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError as error:
        raise NoAnswer(f"the command's result cannot be read: {error}") from error
    if status.status == "Success":
        return 0
    for cause in status.details.causes:
        if cause.reason == "ExitCode" and cause.message.isdecimal():
            return int(cause.message)
    raise ApiError(status.message, code=status.code or 500, reason=status.reason)
