"""A request to a node: its credentials, the stream protocol that it asks for, its log options."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs

from bidplane.api.times import parse_rfc3339
from bidplane.errors import ApiError
from bidplane.http.extensions import Upgrade, switching
from bidplane.http.request import Request, whole_number
from bidplane.node.api import LogOptions
from bidplane.node.auth import Credentials
from bidplane.node.streams.pipes import SocketPipe
from bidplane.wire.streams import remotecommand, websocket

_LARGEST_NUMBER = 1 << 62
# The subresources that a role may allow singly; `proxy` allows all.
_SUBRESOURCES = {"pods": "pods", "healthz": "healthz", "metrics": "metrics", "stats": "stats"}


class NodeRequest(Request):
    """An HTTP request to the node."""

    __slots__ = ()

    def all_values(self) -> dict[str, list[str]]:
        """Return every parameter with its values."""
        return parse_qs(self.query_text, keep_blank_values=True)

    def credentials(self) -> Credentials:
        """The request's token and client certificate."""
        return Credentials(self.bearer, self.certificate)

    def subresources(self) -> list[str]:
        """The node subresources of which one must be allowed."""
        specific = _SUBRESOURCES.get(self.parts[0])
        return [specific, "proxy"] if specific else ["proxy"]

    def stream_upgrade(self) -> Upgrade:
        """The request's upgrade to SPDY or WebSocket; raises `BadRequest` without one."""
        upgrade = self.upgrade
        if upgrade is None or not (
            upgrade.protocol == "websocket" or "spdy/3.1" in upgrade.protocol
        ):
            raise remotecommand.BadRequest(
                "unable to upgrade: send `Connection: Upgrade` with `Upgrade: SPDY/3.1` or"
                " `Upgrade: websocket`"
            )
        return upgrade

    def _offered(self, header: bytes) -> list[str]:
        """The protocols in a header that may come more than once, or with commas."""
        return websocket.offered(",".join(self.header_values(header)))

    def websocket(self, supported: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
        """The protocol that both sides speak, and the response headers that say so."""
        theirs = self._offered(b"sec-websocket-protocol")
        # A client that names no protocol speaks the first version.
        protocol = websocket.choose(theirs, supported) if theirs else remotecommand.V1
        if protocol is None or protocol not in supported:
            raise _no_protocol(theirs, supported)
        try:
            return protocol, websocket.accept(self.headers, protocol if theirs else "")
        except websocket.HandshakeError as error:
            raise remotecommand.BadRequest(f"unable to upgrade: {error}") from error

    def spdy(self, supported: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
        """The protocol that both sides speak, and the response headers that say so."""
        theirs = self._offered(b"x-stream-protocol-version")
        protocol = websocket.choose(theirs, supported)
        if protocol is None:
            raise _no_protocol(theirs, supported)
        return protocol, [
            ("Connection", "Upgrade"),
            ("Upgrade", "SPDY/3.1"),
            ("X-Stream-Protocol-Version", protocol),
        ]


def _no_protocol(theirs: Sequence[str], supported: Sequence[str]) -> ApiError:
    return ApiError(
        f"unable to upgrade: unable to negotiate protocol: client supports [{' '.join(theirs)}],"
        f" server accepts [{' '.join(supported)}]",
        code=403,
        reason="Forbidden",
    )


async def switch_protocols(upgrade: Upgrade, headers: list[tuple[str, str]]) -> SocketPipe:
    """Answer 101 and return the connection as a pipe."""
    pipe = SocketPipe(*upgrade.take())
    await pipe.write(switching(headers))
    return pipe


def log_options(request: NodeRequest, *, now: float) -> LogOptions:
    """The log options in a request's parameters; raises `BadRequest` naming the wrong one."""
    since = _number(request, "sinceSeconds", least=1)
    since_time = request.first("sinceTime")
    if since is not None and since_time:
        raise remotecommand.BadRequest("at most one of `sinceTime` or `sinceSeconds` may be given")
    try:
        since_timestamp = parse_rfc3339(since_time) if since_time else None
    except ValueError:
        raise remotecommand.BadRequest(f"sinceTime: {since_time!r} is no RFC 3339 time") from None
    return LogOptions(
        follow=request.flag("follow"),
        previous=request.flag("previous"),
        timestamps=request.flag("timestamps"),
        tail_lines=_number(request, "tailLines", least=0),
        since=since_timestamp if since is None else now - since,
        limit_bytes=_number(request, "limitBytes", least=1),
    )


def _number(request: NodeRequest, name: str, *, least: int) -> int | None:
    """A numeric parameter, or None; raises `BadRequest` if it is invalid."""
    text = request.first(name)
    if not text:
        return None
    number = whole_number(text) if len(text) < 20 and text[0] not in "+-" else None
    if number is None:
        raise remotecommand.BadRequest(f"{name}: {text!r} is not a number")
    if not least <= number < _LARGEST_NUMBER:
        raise remotecommand.BadRequest(f"{name}: must be at least {least}")
    return number
