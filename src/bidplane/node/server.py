"""
A node's own HTTPS server, with a kubelet's paths.

    GET      /containerLogs/NAMESPACE/POD/CONTAINER     what it printed
    GET|POST /exec/NAMESPACE/POD[/UID]/CONTAINER        a command beside it
    GET|POST /attach/NAMESPACE/POD[/UID]/CONTAINER      its own terminal
    GET|POST /portForward/NAMESPACE/POD[/UID]           connections into it
    GET      /pods                                      what runs here
    GET      /stats/summary, /metrics/resource          what that uses
    GET      /metrics                                   what the node's devices do
    GET      /healthz

Whoever asks is checked first, whatever the path. kubectl speaks to an API server, and that
speaks to us: with SPDY, or, where the node says that it can, with kubectl's own WebSocket.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    MutableMapping,
    Sequence,
)
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

import msgspec

from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.node import stats
from bidplane.node.api import ExecSession, LogOptions, PodRuntime
from bidplane.node.auth import Credentials, Gate
from bidplane.node.streams import command, forward
from bidplane.node.streams.pipes import SocketPipe, WebSocketPipe
from bidplane.runtime.clientcerts import CLIENT_CERTIFICATE
from bidplane.runtime.connection import Upgrade, switching, upgrade_of
from bidplane.runtime.serve import while_connected
from bidplane.telemetry import dcgm
from bidplane.telemetry.model import Counters
from bidplane.wire import remotecommand, websocket

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# What a node that can take kubectl's WebSockets itself says in `status.declaredFeatures`.
WEBSOCKETS = "ExtendWebSocketsToKubelet"
_LARGEST_NUMBER = 1 << 62
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}
# Beside `proxy`, which allows all: what a role may allow alone.
_SUBRESOURCES = {"pods": "pods", "healthz": "healthz", "metrics": "metrics", "stats": "stats"}


class Usage(Protocol):
    """Measures what runs; walking the disks, too, takes longer."""

    async def read(self, *, disks: bool) -> stats.NodeUse: ...


class KubeletServer:
    """An ASGI app. `metrics` are what a Prometheus is told of this node's devices."""

    def __init__(
        self,
        runtime: PodRuntime,
        gate: Gate,
        *,
        clock: Clock,
        metrics: Callable[[], Awaitable[Iterable[Counters]]] | None = None,
        usage: Usage | None = None,
    ) -> None:
        self._runtime, self._gate, self._clock = runtime, gate, clock
        self._metrics, self._usage = metrics, usage
        self._rates = stats.Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = _Request(scope)
        try:
            await self._gate.admit(
                request.credentials(), _VERBS.get(request.method, ""), request.subresources()
            )
            await self._route(request, receive, send)
        except remotecommand.BadRequest as error:
            await _answer(send, 400, str(error).encode())
        except ApiError as error:
            await _answer(send, error.code, str(error).encode())

    async def _route(self, request: _Request, receive: Receive, send: Send) -> None:
        head, *rest = request.parts
        match request.method, head, rest:
            case "GET" | "HEAD", "healthz", []:
                await _answer(send, 200, b"ok")
            case "GET", "pods", []:
                await _answer(send, 200, self._pods(), "application/json")
            case "GET", "metrics", [] if self._metrics is not None:
                page = dcgm.exposition(await self._metrics())
                await _answer(send, 200, page, "text/plain; version=0.0.4")
            case "GET", "metrics", ["resource"] if self._usage is not None:
                page = stats.resource_metrics(await self._usage.read(disks=False))
                await _answer(send, 200, page, "text/plain; version=0.0.4; charset=utf-8")
            case "GET" | "POST", "stats", ["summary"] if self._usage is not None:
                disks = not _flag(request.query, "only_cpu_and_memory")
                told = stats.summary(await self._usage.read(disks=disks), self._rates)
                await _answer(send, 200, msgspec.json.encode(told), "application/json")
            case "GET", "containerLogs", [namespace, name, container]:
                await self._logs(request, self._find(namespace, name), container, receive, send)
            case "GET" | "POST", "exec" | "attach", [namespace, name, *uid, container] if (
                len(uid) < 2
            ):
                pod = self._find(namespace, name, *uid)
                await self._command(request, pod, container, attach=head == "attach")
            case "GET" | "POST", "portForward", [namespace, name, *uid] if len(uid) < 2:
                await self._forward(request, self._find(namespace, name, *uid))
            case _:
                raise NotFound(f"nothing is served at {request.method} {request.path}")

    def _find(self, namespace: str, name: str, uid: str = "") -> Object:
        pod = self._runtime.find(namespace, name)
        if uid and pod["metadata"].get("uid") != uid:
            raise NotFound("pod does not exist")
        return pod

    def _pods(self) -> bytes:
        pods = {"kind": "PodList", "apiVersion": "v1", "metadata": {}}
        return msgspec.json.encode({**pods, "items": self._runtime.pods()})

    async def _logs(
        self, request: _Request, pod: Object, container: str, receive: Receive, send: Send
    ) -> None:
        options = log_options(request.query, now=self._clock.now())
        chunks = await self._runtime.logs(pod, container, options)
        await while_connected(receive, _stream(send, chunks))

    async def _command(
        self, request: _Request, pod: Object, container: str, *, attach: bool
    ) -> None:
        wanted = remotecommand.wanted_from_kubelet(request.query)
        words = request.query.get("command", [])
        if not attach and not words:
            raise remotecommand.BadRequest("you must specify at least 1 command for the container")
        upgrade = request.upgrade()
        if upgrade.protocol == "websocket":
            protocol, headers = request.websocket(remotecommand.OVER_WEBSOCKET)
            serve = command.over_websocket
        else:
            protocol, headers = request.spdy(remotecommand.OVER_SPDY)
            serve = command.over_spdy

        async def start() -> ExecSession:
            if attach:
                return await self._runtime.attach(pod, container, stdin=wanted.stdin)
            return await self._runtime.exec(
                pod, container, words, stdin=wanted.stdin, tty=wanted.tty
            )

        pipe = await _take(upgrade, headers)
        await serve(pipe, protocol, wanted, start)

    async def _forward(self, request: _Request, pod: Object) -> None:
        upgrade = request.upgrade()

        async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await self._runtime.connect(pod, port)

        if upgrade.protocol != "websocket":
            _, headers = request.spdy([remotecommand.PORT_FORWARD])
            await forward.over_spdy(await _take(upgrade, headers), connect)
            return
        protocol, headers = request.websocket(remotecommand.FORWARD_OVER_WEBSOCKET)
        if protocol == remotecommand.TUNNEL:
            pipe = WebSocketPipe(await _take(upgrade, headers))
            await forward.over_spdy(pipe, connect)
            return
        ports = remotecommand.ports(request.query.get("ports", []))
        await forward.over_channels(await _take(upgrade, headers), protocol, ports, connect)


class _Request:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.method: str = scope["method"]
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        self.path = raw.decode("latin-1")
        # Split before unquoting: a name may not bring a slash of its own.
        self.parts = [unquote(part) for part in self.path.strip("/").split("/")]
        query = scope["query_string"].decode("latin-1")
        self.query = parse_qs(query, keep_blank_values=True)

    def values(self, name: bytes) -> list[str]:
        """Of a header that may come more than once, or with commas."""
        found = [value.decode("latin-1") for key, value in self._scope["headers"] if key == name]
        return websocket.offered(",".join(found))

    def credentials(self) -> Credentials:
        headers = dict(self._scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        return Credentials(
            token.strip() if scheme.lower() == "bearer" else "",
            self._scope.get("state", {}).get(CLIENT_CERTIFICATE),
        )

    def subresources(self) -> list[str]:
        own = _SUBRESOURCES.get(self.parts[0])
        return [own, "proxy"] if own else ["proxy"]

    def upgrade(self) -> Upgrade:
        found = upgrade_of(self._scope)
        if found is None or not (found.protocol == "websocket" or "spdy/3.1" in found.protocol):
            raise remotecommand.BadRequest(
                "unable to upgrade: ask with `Connection: Upgrade` and `Upgrade: SPDY/3.1`, or"
                " `Upgrade: websocket`"
            )
        return found

    def websocket(self, ours: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
        """The protocol both speak, and the headers that say so."""
        theirs = self.values(b"sec-websocket-protocol")
        # Who names none speaks the first there was.
        protocol = websocket.choose(theirs, ours) if theirs else remotecommand.V1
        if protocol is None or protocol not in ours:
            raise _no_protocol(theirs, ours)
        try:
            headers = dict(self._scope["headers"])
            return protocol, websocket.accept(headers, protocol if theirs else "")
        except websocket.HandshakeError as error:
            raise remotecommand.BadRequest(f"unable to upgrade: {error}") from error

    def spdy(self, ours: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
        theirs = self.values(b"x-stream-protocol-version")
        protocol = websocket.choose(theirs, ours)
        if protocol is None:
            raise _no_protocol(theirs, ours)
        return protocol, [
            ("Connection", "Upgrade"),
            ("Upgrade", "SPDY/3.1"),
            ("X-Stream-Protocol-Version", protocol),
        ]


def _no_protocol(theirs: Sequence[str], ours: Sequence[str]) -> ApiError:
    return ApiError(
        f"unable to upgrade: unable to negotiate protocol: client supports [{' '.join(theirs)}],"
        f" server accepts [{' '.join(ours)}]",
        code=403,
        reason="Forbidden",
    )


async def _take(upgrade: Upgrade, headers: list[tuple[str, str]]) -> SocketPipe:
    pipe = SocketPipe(*upgrade.take())
    await pipe.write(switching(headers))
    return pipe


def log_options(query: MutableMapping[str, list[str]], *, now: float) -> LogOptions:
    """From a kubelet's parameters; raises `BadRequest` naming the one that is wrong."""
    since = _number(query, "sinceSeconds", least=1)
    when = query.get("sinceTime", [""])[0]
    if since is not None and when:
        raise remotecommand.BadRequest("at most one of `sinceTime` or `sinceSeconds` may be given")
    try:
        moment = parse_rfc3339(when) if when else None
    except ValueError:
        raise remotecommand.BadRequest(f"sinceTime: {when!r} is no RFC 3339 time") from None
    return LogOptions(
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        timestamps=_flag(query, "timestamps"),
        tail_lines=_number(query, "tailLines", least=0),
        since=moment if since is None else now - since,
        limit_bytes=_number(query, "limitBytes", least=1),
    )


def _flag(query: MutableMapping[str, list[str]], name: str) -> bool:
    return query.get(name, [""])[0] in ("1", "true", "True")


def _number(query: MutableMapping[str, list[str]], name: str, *, least: int) -> int | None:
    text = query.get(name, [""])[0]
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise remotecommand.BadRequest(f"{name}: {text!r} is not a number")
    number = int(text)
    if not least <= number < _LARGEST_NUMBER:
        raise remotecommand.BadRequest(f"{name}: must be at least {least}")
    return number


async def _stream(send: Send, chunks: AsyncIterator[bytes]) -> None:
    await _start(send, 200, "text/plain; charset=utf-8")
    # The headers alone: a client that follows must know at once that it is heard.
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    async for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _start(send: Send, code: int, kind: str) -> None:
    headers = [(b"content-type", kind.encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})


async def _answer(
    send: Send, code: int, body: bytes, kind: str = "text/plain; charset=utf-8"
) -> None:
    await _start(send, code, kind)
    await send({"type": "http.response.body", "body": body})
