"""A request to a plane: its target, and its body as JSON, YAML or protobuf."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bidplane.http.asgi import Receive, Scope
from bidplane.http.replies import encode
from bidplane.http.request import BodyLimit, Request
from bidplane.plane.output import OutputBudget
from bidplane.wire import depth, protobuf, status, yaml
from bidplane.wire.paths import RequestTarget

REQUEST_LIMIT = 3 << 20  # bytes
BODY_SECONDS = 60
_PROTOBUF = "application/vnd.kubernetes.protobuf"


class PlaneRequest(Request):
    """A request to a plane. Its `path` is the plane's own, after `/planes/NAME`."""

    __slots__ = ("_held", "first_sent", "output", "target", "warnings")
    body_limit = BodyLimit(REQUEST_LIMIT, BODY_SECONDS)

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        # The object or list of the path, parsed after authentication.
        self.target: RequestTarget | None = None
        self.warnings: list[str] = []
        self.output = OutputBudget()  # shared with the other clients of its plane
        self._held = 0  # bytes of the output that the response has taken
        self.first_sent: Callable[[], None] = lambda: None  # called when a watch's first list is

    async def decoded(self, *also: str) -> Any:
        """Return the body as JSON; `also` are media types that are JSON under another name."""
        return decode(await self.body(), self.media_type, also)

    async def hold_output(self, size: int) -> None:
        """Wait until a response of `size` bytes may wait for its reader."""
        await self.output.take(size)
        self._held += size

    def release_output(self) -> None:
        size, self._held = self._held, 0
        if size:
            self.output.give_back(size)


def decode(body: bytes, media_type: str, also: Iterable[str] = ()) -> Any:
    if media_type == _PROTOBUF or protobuf.is_protobuf(body):
        try:
            return protobuf.decode(body)
        except protobuf.ProtobufError as error:
            raise status.bad_request(f"the body cannot be decoded: {error}") from error
    if media_type == "application/yaml":
        return yaml.load(body) or {}
    if media_type not in ("", "application/json", *also):
        raise status.unsupported(
            "the body of the request was in an unknown format - accepted media types include:"
            f" application/json, application/yaml, {_PROTOBUF}"
        )
    try:
        value = msgspec.json.decode(body) if body else {}
        depth.check(value, depth.brackets(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise status.bad_request(f"the body is not JSON: {error}") from error
    except (RecursionError, depth.TooDeep):
        raise status.bad_request(f"the body is {depth.MESSAGE}") from None
    return value


def duplicates(body: bytes, decoded: Any) -> list[str]:
    """Return the paths of fields that `body`, which is JSON, names more than once."""
    # A compact body without duplicates has the same length when encoded again: most end here.
    if body[:1] not in b"{[ \t\r\n" or len(encode(decoded)) == len(body):
        return []
    field_paths: list[str] = []
    with contextlib.suppress(ValueError, RecursionError):
        _collect_duplicates(json.loads(body, object_pairs_hook=_Pairs), "", field_paths)
    return field_paths


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written: its fields in order, also those named twice."""


def _collect_duplicates(value: Any, path: str, field_paths: list[str]) -> None:
    if isinstance(value, _Pairs):
        prefix = f"{path}." if path else ""
        names: set[str] = set()
        for key, item in value:
            if key in names:
                field_paths.append(f"{prefix}{key}")
            names.add(key)
            _collect_duplicates(item, f"{prefix}{key}", field_paths)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _collect_duplicates(item, f"{path}[{index}]", field_paths)
