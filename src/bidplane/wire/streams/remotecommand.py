"""
The protocols of `kubectl exec`, `attach` and `port-forward`, as pure functions.

There are five versions. Numbers name the channels of a WebSocket, a header
(`streamtype`) the streams of SPDY:

    v1   stdin, stdout, stderr, error (plain text)
    v2   v1, and half-closed streams work
    v3   v2, and resize
    v4   v3, and the error is a Status with the exit code
    v5   v4 on a WebSocket, where a message on channel 255 closes another channel
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.errors import ApiError

V1, V2, V3, V4, V5 = "channel.k8s.io", *(f"v{n}.channel.k8s.io" for n in (2, 3, 4, 5))
BASE64_V1, BASE64_V4 = "base64.channel.k8s.io", "v4.base64.channel.k8s.io"
PORT_FORWARD = "portforward.k8s.io"
TUNNEL = f"SPDY/3.1+{PORT_FORWARD}"

OVER_SPDY = (V4, V3, V2, V1)
OVER_WEBSOCKET = (V5, V4, BASE64_V4, V1, BASE64_V1)
FORWARD_OVER_WEBSOCKET = (TUNNEL, V4, BASE64_V4)

_CLOSE_SIGNAL = 255
_LONGEST_SIZE = 4096  # bytes of a resize that has not ended


class Channel(enum.IntEnum):
    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that a command gets."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False

    def streams(self, protocol: str) -> set[str]:
        """The `streamtype`s a SPDY client opens."""
        named = {"stdin": self.stdin, "stdout": self.stdout, "stderr": self.stderr}
        with_resize = self.tty and protocol not in (V1, V2)
        return {"error", *(name for name, is_open in named.items() if is_open)} | (
            {"resize"} if with_resize else set()
        )


class BadRequest(ValueError):
    """A request with invalid parameters."""


_KUBELET = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
_TRUE = ("1", "true", "True", "TRUE", "t", "T")


def wanted_from_kubelet(query: Mapping[str, Sequence[str]]) -> Wanted:
    """Read the streams from a kubelet's parameters (`input=1&output=1&tty=1`)."""
    return _wanted({ours: query.get(theirs, ()) for ours, theirs in _KUBELET.items()})


def wanted_from_api(query: Mapping[str, Sequence[str]]) -> Wanted:
    """Read the streams from an API server's parameters (`stdin=true&tty=true`)."""
    return _wanted({name: query.get(name, ()) for name in _KUBELET})


def _wanted(parameters: Mapping[str, Sequence[str]]) -> Wanted:
    flags = {name: bool(values) and values[0] in _TRUE for name, values in parameters.items()}
    if flags["tty"]:
        flags["stderr"] = False  # a terminal has one output
    if not (flags["stdin"] or flags["stdout"] or flags["stderr"]):
        raise BadRequest("you must specify at least 1 of stdin, stdout, stderr")
    return Wanted(**flags)


def to_kubelet(options: Wanted, commands: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the query parameters of a request to a kubelet."""
    flags = [(theirs, "1") for ours, theirs in _KUBELET.items() if getattr(options, ours)]
    return [*flags, *(("command", word) for word in commands)]


# Results.


def result(protocol: str, outcome: int | ApiError) -> bytes:
    """Return the final message of the error stream: an exit code, or why nothing ran."""
    if protocol in (V4, V5, BASE64_V4):
        return msgspec.json.encode(_status(outcome))
    if isinstance(outcome, ApiError):
        return f"error executing command in container: {outcome}".encode()
    if outcome:
        return f"command terminated with exit code {outcome}".encode()
    return b""


def _status(outcome: int | ApiError) -> dict[str, Any]:
    if isinstance(outcome, ApiError):
        return {
            "metadata": {},
            "status": "Failure",
            "message": str(outcome),
            "reason": outcome.reason,
            "code": outcome.code,
        }
    if outcome == 0:
        return {"metadata": {}, "status": "Success"}
    detail = f"command terminated with exit code {outcome}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {detail}",
        "reason": "NonZeroExitCode",
        # Clients read eight bits.
        "details": {"causes": [{"reason": "ExitCode", "message": str(outcome & 0xFF)}]},
    }


class Sizes:
    """A decoder of terminal sizes from a stream of JSON objects."""

    def __init__(self) -> None:
        self._decoder = json.JSONDecoder()
        self._text = ""

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Return the (width, height) of each complete object; skip objects that are no size."""
        self._text += data.decode("latin-1")
        sizes: list[tuple[int, int]] = []
        while text := self._text.lstrip():
            try:
                value, end = self._decoder.raw_decode(text)
            except (ValueError, RecursionError):
                self._text = text if len(text) <= _LONGEST_SIZE else ""
                return sizes
            self._text = text[end:]
            if size := _size(value):
                sizes.append(size)
        self._text = ""
        return sizes


def _size(value: Any) -> tuple[int, int] | None:
    if not isinstance(value, dict):
        return None
    numbers = [value.get("Width"), value.get("Height")]
    width, height = (n if type(n) is int and 0 < n < 1 << 16 else 0 for n in numbers)
    return (width, height) if width and height else None


# Channels of a WebSocket.


class ChannelData(msgspec.Struct, frozen=True, tag=True):
    channel: int
    data: bytes


class End(msgspec.Struct, frozen=True, tag=True):
    channel: int


class ChannelError(ValueError):
    """A message that names no channel, or is not in the codec that was agreed."""


class Channels:
    """Channels in messages, in the codec of one protocol."""

    def __init__(self, protocol: str) -> None:
        self.text = protocol in (BASE64_V1, BASE64_V4)
        self._can_close = protocol == V5

    def encode(self, channel: int, data: bytes) -> bytes:
        if self.text:
            return str(channel).encode() + base64.b64encode(data)
        return bytes((channel,)) + data

    def decode(self, message: bytes) -> ChannelData | End:
        if not message:
            raise ChannelError("an empty message names no channel")
        if not self.text:
            if self._can_close and message[0] == _CLOSE_SIGNAL:
                if len(message) != 2:
                    raise ChannelError("a close signal names one channel")
                return End(message[1])
            return ChannelData(message[0], message[1:])
        try:
            return ChannelData(int(message[:1]), base64.b64decode(message[1:], validate=True))
        except (ValueError, binascii.Error) as error:
            raise ChannelError(f"not a digit and base64: {error}") from error


def ports(values: Sequence[str]) -> list[int]:
    """Return the `ports` of a port-forward over channels; raises `BadRequest`."""
    numbers = []
    for text in (part for value in values for part in value.split(",")):
        number = port(text)
        if number is None:
            raise BadRequest(f"{text!r} is not a port from 1 to 65535")
        numbers.append(number)
    if not numbers:
        raise BadRequest('query parameter "ports" is required')
    if len(numbers) > _MOST_PORTS:
        raise BadRequest(f"at most {_MOST_PORTS} ports at once")
    return numbers


_MOST_PORTS = 100  # two channels each, and a channel is a byte


def port(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        return None
    number = int(text)
    return number if 0 < number < 1 << 16 else None
