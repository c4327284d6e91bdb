"""One HTTP exchange in ASGI's terms: the request read within bounds, the answer as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from bidplane.errors import ApiError
from bidplane.runtime.clientcerts import CLIENT_CERTIFICATE
from bidplane.runtime.connection import upgrade_of
from bidplane.wire import protobuf, status, yaml
from bidplane.wire.paths import Target

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUEST_LIMIT = 3 << 20  # bytes
BODY_SECONDS = 60
JSON = b"application/json"
_PROTOBUF = "application/vnd.kubernetes.protobuf"
encode = msgspec.json.Encoder().encode
_NOTHING: dict[str, Any] = {}
_TRUE = ("1", "true", "True", "TRUE", "t", "T")


class Request:
    def __init__(self, scope: Scope, receive: Receive, path: str) -> None:
        self.method: str = scope["method"]
        self.path = path
        self.target: Target | None = None  # what the path is about, once it is known whose it is
        self._receive = receive
        self.raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.upgrade = upgrade_of(scope)  # to another protocol, if the client asks for one
        self.query_text = query = scope["query_string"].decode("latin-1")
        self.query: dict[str, str] = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
        self.warnings: list[str] = []
        # Of the client, if it showed one; the TLS server has checked who signed it.
        self.certificate: bytes | None = scope.get("state", _NOTHING).get(CLIENT_CERTIFICATE)
        self._body: bytes | None = None

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def header_values(self, name: bytes) -> list[str]:
        """Of a header that may be sent more than once."""
        return [value.decode("latin-1") for key, value in self.raw_headers if key == name]

    def headers_after(self, prefix: bytes) -> list[tuple[str, str]]:
        """Every header whose name begins with `prefix`: the rest of its name, and its value."""
        return [
            (unquote(key[len(prefix) :].decode("latin-1")), value.decode("latin-1"))
            for key, value in self.raw_headers
            if key.startswith(prefix)
        ]

    @property
    def accept(self) -> str:
        return self.header(b"accept") or "*/*"

    @property
    def media_type(self) -> str:
        return self.header(b"content-type").partition(";")[0].strip().lower()

    def values(self, name: str) -> list[str]:
        """Of a parameter that may be given more than once."""
        pairs = parse_qsl(self.query_text, keep_blank_values=True)
        return [value for key, value in pairs if key == name]

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in _TRUE

    def number(self, name: str) -> int | None:
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise status.bad_request(f"{name} must be a number, not {text!r}") from None

    async def body(self) -> bytes:
        """The whole body, read once, within bounds of size and time."""
        if self._body is None:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    self._body = await self._read()
            except TimeoutError:
                raise status.refuse(
                    408, "Timeout", f"the body did not arrive within {BODY_SECONDS} seconds"
                ) from None
        return self._body

    async def _read(self) -> bytes:
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > REQUEST_LIMIT:
            raise status.too_large(REQUEST_LIMIT)
        chunks, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > REQUEST_LIMIT:
                raise status.too_large(REQUEST_LIMIT)
            chunks.append(chunk)
            if not message.get("more_body"):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def decoded(self, *also: str) -> Any:
        """The body as JSON; `also` are media types that are JSON under another name."""
        return decode(await self.body(), self.media_type, also)

    async def disconnected(self) -> None:
        """Return when the client is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Disconnected(Exception):
    """The client went away; there is nobody to answer."""


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
        return msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise status.bad_request(f"the body is not JSON: {error}") from error
    except RecursionError:
        raise status.bad_request("the body is nested too deeply") from None


def duplicates(body: bytes, decoded: Any) -> list[str]:
    """The paths of fields that `body`, which is JSON, names more than once."""
    # Written anew, what was compact and had none is just as long: most bodies end here.
    if body[:1] not in b"{[ \t\r\n" or len(encode(decoded)) == len(body):
        return []
    found: list[str] = []
    with contextlib.suppress(ValueError, RecursionError):
        _name(json.loads(body, object_pairs_hook=_Pairs), "", found)
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written: its fields in order, also those named twice."""


def _name(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Pairs):
        prefix = f"{path}." if path else ""
        seen: set[str] = set()
        for key, item in value:
            if key in seen:
                found.append(f"{prefix}{key}")
            seen.add(key)
            _name(item, f"{prefix}{key}", found)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _name(item, f"{path}[{at}]", found)


class Answer:
    """What is sent back. `stream` answers are sent by themselves."""

    __slots__ = ("body", "code", "headers")

    def __init__(self, body: bytes, code: int = 200, content_type: bytes = JSON) -> None:
        self.body, self.code = body, code
        self.headers = [(b"content-type", content_type)]


def answer(obj: Any, code: int = 200) -> Answer:
    return Answer(encode(obj), code)


def refusal(error: ApiError) -> Answer:
    said = answer(status.status(error), error.code)
    if isinstance(error, status.Refused) and error.retry_after:
        said.headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.code == 401:
        said.headers.append((b"www-authenticate", b'Bearer realm="bidplane"'))
    return said


async def send_answer(send: Send, said: Answer, warnings: Iterable[str] = ()) -> None:
    headers = [*said.headers, (b"content-length", str(len(said.body)).encode())]
    headers += [(b"warning", _warning(text)) for text in dict.fromkeys(warnings)]
    await send({"type": "http.response.start", "status": said.code, "headers": headers})
    await send({"type": "http.response.body", "body": said.body})


def _warning(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", " ")
    return f'299 - "{quoted}"'.encode("latin-1", "replace")
