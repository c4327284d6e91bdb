"""
Heads of messages: which requests are accepted, and what is passed on.

A head is passed on as it came, in its order and case, without what belongs to one connection only
(RFC 9110, 7.6.1). What two parsers may read in two ways is refused, never repaired: the request
before us and the request behind us must be the same one.
"""

from __future__ import annotations

import enum
import http
import re
from collections.abc import Set

import msgspec

Headers = list[tuple[bytes, bytes]]

HEAD_BYTES = 64 << 10  # of a head's names and values
HEAD_COUNT = 256  # headers of a head

# What belongs to one connection. `te` is dropped: trailers are always passed on.
_HOP = frozenset(
    [
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    ]
)
_FORWARDED = frozenset([b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"])
_RARE = _HOP | _FORWARDED | {b"host", b"content-length", b"content-type", b"expect"}
# A client that names these in `Connection` wants them taken away from its backend.
_NOT_NOMINABLE = frozenset([b"host", b"content-length", b"content-type", b"authorization"])
_HOST = re.compile(
    rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}))(:[0-9]{1,5})?"
)
_DOTS = re.compile(rb"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_GRPC = re.compile(rb"application/grpc(?:[+; ]|$)", re.IGNORECASE)
_PROTOCOL_METHODS = frozenset([b"CONNECT", b"PRI", b"SOURCE"])
_INTERIM = range(100, 200)
_NO_BODY = frozenset([204, 304])
_NOTHING: frozenset[bytes] = frozenset()


_REASONS = {status.value: status.phrase.encode() for status in http.HTTPStatus}


def reason(status: int) -> bytes:
    """Return the phrase of a status, or b""."""
    return _REASONS.get(status, b"")


class Refusal(Exception):
    """A message that is not passed on: the status and the text that its sender gets."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class BadResponse(Exception):
    """An answer of a backend that cannot be passed on."""


class Framing(enum.Enum):
    """How the end of a message's body is known."""

    NONE = "no body"
    LENGTH = "Content-Length"
    CHUNKED = "chunked"
    CLOSE = "until the connection closes"


class RequestHead(msgspec.Struct):
    """A request's head that was accepted. `lines` is what its backend gets, without our own."""

    method: bytes
    target: bytes  # in origin form
    path: bytes
    host: bytes  # lower case, without a port
    authority: bytes  # the Host header as it came
    headers: Headers
    lines: list[bytes]
    framing: Framing
    is_old: bool  # HTTP/1.0
    keep_alive: bool
    websocket: bool = False
    expects_continue: bool = False

    def header(self, name: bytes) -> bytes:
        """Return the first value of a header, given in lower case, or b""."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return b""


class ResponseHead(msgspec.Struct):
    """A response's head that was accepted. `lines` is what its client gets, without our own."""

    status: int
    reason: bytes
    lines: list[bytes]
    framing: Framing
    length: int = 0
    websocket: bool = False


def read_request(
    method: bytes, target: bytes, version: str, headers: Headers, *, keep_alive: bool
) -> RequestHead:
    """Return the head of a request; raise `Refusal` if it is not passed on."""
    if method in _PROTOCOL_METHODS:
        raise Refusal(501, f"the method {method.decode()} is not served here")
    lines: list[bytes] = []
    rare: dict[bytes, bytes] = {}
    for name, value in headers:
        key = name.lower()
        if key in _RARE:
            if key in rare:
                if key in (b"host", b"content-length", b"content-type"):
                    raise Refusal(400, f"more than one {name.decode('latin-1')} header")
                value = rare[key] + b", " + value
            rare[key] = value
            if key in _HOP or key in _FORWARDED:
                continue
        lines.append(name + b": " + value)
    is_old = version == "1.0"
    connection = rare.get(b"connection")
    nominated = _tokens(connection) if connection else _NOTHING
    if nominated:
        lines = _without_nominated(lines, nominated)
    if b"content-type" in rare and _GRPC.match(rare[b"content-type"]):
        raise Refusal(501, "gRPC needs HTTP/2, which is not served here: use HTTP/1.1 or gRPC-Web")
    authority = rare.get(b"host", b"").strip()
    if target[:1] != b"/":
        target = _origin_form(method, target, authority)
    path = target.partition(b"?")[0]
    if b"#" in target:
        raise Refusal(400, "the request target has a fragment")
    if b"." in path or b"%" in path:
        _check_dots(path)
    return RequestHead(
        method=method,
        target=target,
        path=path,
        host=_host(authority, is_old=is_old),
        authority=authority,
        headers=headers,
        lines=lines,
        framing=_request_framing(rare, is_old=is_old),
        is_old=is_old,
        keep_alive=keep_alive and not is_old,
        websocket=(
            b"upgrade" in nominated
            and method == b"GET"
            and rare.get(b"upgrade", b"").strip().lower() == b"websocket"
            and not is_old
        ),
        expects_continue=_expects_continue(rare),
    )


def _tokens(value: bytes) -> Set[bytes]:
    """Return the tokens of a Connection header other than the two that say how long it lives."""
    if not value or value in (b"keep-alive", b"close"):
        return _NOTHING
    return {token.strip().lower() for token in value.split(b",")} - {b"", b"keep-alive", b"close"}


def _without_nominated(lines: list[bytes], nominated: Set[bytes]) -> list[bytes]:
    if refused := nominated & _NOT_NOMINABLE:
        raise Refusal(400, f"Connection names {min(refused).decode()}, which every hop needs")
    return [line for line in lines if line.partition(b":")[0].lower() not in nominated]


def _origin_form(method: bytes, target: bytes, authority: bytes) -> bytes:
    if target == b"*" and method == b"OPTIONS":
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise Refusal(400, "the request target must begin with /")
    slash = re.search(rb"[/?]", rest)
    end = slash.start() if slash else len(rest)
    if rest[:end].lower() != authority.lower():
        raise Refusal(400, "the request target names another host than the Host header")
    path = rest[end:]
    return path if path[:1] == b"/" else b"/" + path


def _check_dots(path: bytes) -> None:
    # `/public/../admin` is one path to a route and another one to the backend.
    if _DOTS.search(path):
        raise Refusal(400, "the path has a segment . or ..: send it resolved")


def _host(authority: bytes, *, is_old: bool) -> bytes:
    match = _HOST.fullmatch(authority)
    if match is None:
        if not authority:
            if is_old:
                return b""
            raise Refusal(400, "the Host header is missing")
        raise Refusal(400, "the Host header is not a host name")
    return match[1].lower().rstrip(b".")


def _request_framing(rare: dict[bytes, bytes], *, is_old: bool) -> Framing:
    coding = rare.get(b"transfer-encoding")
    length = rare.get(b"content-length")
    if coding is not None:
        # llhttp refuses both at once, too; this is what the rest of us stands on.
        if length is not None:
            raise Refusal(400, "both Transfer-Encoding and Content-Length")
        if is_old:
            raise Refusal(400, "Transfer-Encoding in HTTP/1.0")
        if coding.strip().lower() != b"chunked":
            raise Refusal(501, "the only Transfer-Encoding served is chunked")
        return Framing.CHUNKED
    if length is not None:
        if not length.strip().isdigit() or len(length) > 18:
            raise Refusal(400, "the Content-Length is not a number of bytes")
        return Framing.LENGTH
    return Framing.NONE


def _expects_continue(rare: dict[bytes, bytes]) -> bool:
    expect = rare.get(b"expect")
    if expect is None:
        return False
    if expect.strip().lower() != b"100-continue":
        raise Refusal(417, "the only expectation served is 100-continue")
    return True


def backend_head(head: RequestHead, peer: bytes, proto: bytes, *, trusted: bool) -> bytes:
    """
    Return the head that a backend gets.

    A trusted peer is a proxy of the owner's: what it says of its own client is kept. Anybody
    else's X-Forwarded headers are replaced.
    """
    host = head.authority
    if trusted:
        before = {key.lower(): value for key, value in head.headers if key.lower() in _FORWARDED}
        forwarded_for = before.get(b"x-forwarded-for")
        peer = forwarded_for + b", " + peer if forwarded_for else peer
        proto = before.get(b"x-forwarded-proto", proto)
        host = before.get(b"x-forwarded-host", host)
    lines = [
        b"%b %b HTTP/1.1" % (head.method, head.target),
        *head.lines,
        b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b"
        % (peer, proto, host),
    ]
    if not head.authority:  # HTTP/1.0 without one
        lines.insert(1, b"Host: localhost")
    if head.framing is Framing.CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    if head.websocket:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def read_response(
    status: int, reason: bytes, headers: Headers, request: RequestHead
) -> ResponseHead:
    """Return the head of a response; raise `BadResponse` if it cannot be passed on."""
    lines: list[bytes] = []
    length: bytes | None = None
    chunked = False
    upgrade = connection = b""
    for name, value in headers:
        key = name.lower()
        if key in _HOP:
            if key == b"transfer-encoding":
                if value.strip().lower() != b"chunked" or chunked:
                    raise BadResponse(f"the Transfer-Encoding {value[:40]!r}")
                chunked = True
            elif key == b"connection":
                connection += b"," + value
            elif key == b"upgrade":
                upgrade = value.strip().lower()
            elif key == b"proxy-authenticate":
                lines.append(name + b": " + value)
            continue
        if key == b"content-length":
            if length is not None or not value.strip().isdigit() or len(value) > 18:
                raise BadResponse("its Content-Length")
            length = value
        lines.append(name + b": " + value)
    if length is not None and chunked:
        raise BadResponse("both Transfer-Encoding and Content-Length")
    if status == 101:
        agrees = upgrade == b"websocket" and b"upgrade" in _tokens(connection)
        if not (request.websocket and agrees):
            raise BadResponse("a switch to a protocol that was not asked for")
        return ResponseHead(status, reason, lines, Framing.NONE, websocket=True)
    if nominated := _tokens(connection):
        lines = [line for line in lines if line.partition(b":")[0].lower() not in nominated]
    framing = _response_framing(status, chunked, length, request)
    return ResponseHead(status, reason, lines, framing, length=int(length or 0))


def _response_framing(
    status: int, chunked: bool, length: bytes | None, request: RequestHead
) -> Framing:
    if request.method == b"HEAD" or status in _INTERIM or status in _NO_BODY:
        return Framing.NONE
    if chunked:
        return Framing.CHUNKED
    return Framing.CLOSE if length is None else Framing.LENGTH


def client_head(
    head: ResponseHead,
    *,
    old_client: bool,
    close: bool,
    added: list[bytes],
    announce_chunked: bool = False,
) -> bytes:
    """
    Return the head that a client gets; `announce_chunked` is for the answer to a HEAD.

    A body of unknown length is chunked for HTTP/1.1, and ends with the connection for HTTP/1.0.
    """
    lines = [b"HTTP/1.1 %d %s" % (head.status, head.reason), *head.lines, *added]
    if head.websocket:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket")
    elif head.status not in _INTERIM:
        unknown = head.framing in (Framing.CHUNKED, Framing.CLOSE) or announce_chunked
        if unknown and not old_client:
            lines.append(b"Transfer-Encoding: chunked")
        if close:
            lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def trailer_block(trailers: Headers) -> bytes:
    """Return the last chunk with its trailers: fields of framing and routing are left out."""
    lines = [
        name + b": " + value
        for name, value in trailers
        if name.lower() not in _RARE or name.lower() == b"content-type"
    ]
    return b"\r\n".join([b"0", *lines, b"\r\n"]) if lines else b"0\r\n\r\n"
