"""
A node's own HTTPS server, with a kubelet's paths.

    GET      /containerLogs/NAMESPACE/POD/CONTAINER     a container's log
    GET|POST /exec/NAMESPACE/POD[/UID]/CONTAINER        a command in a container
    GET|POST /attach/NAMESPACE/POD[/UID]/CONTAINER      a container's own terminal
    GET|POST /portForward/NAMESPACE/POD[/UID]           connections into a pod
    GET      /pods                                      the pods on this node
    GET      /stats/summary, /metrics/resource          their CPU, memory and disk use
    GET      /metrics                                   the counters of the node's devices
    GET      /healthz

Every request is authorized first, whatever its path. kubectl speaks to an API server, which
speaks to us: with SPDY, or, where the node declares the feature, with kubectl's own WebSocket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar, Protocol

from bidplane.errors import ApiError, NotFound
from bidplane.http.asgi import Receive, Scope, Send
from bidplane.http.replies import (
    TEXT,
    Reply,
    json_reply,
    send_reply,
    send_while_connected,
    text_reply,
)
from bidplane.http.request import Disconnected
from bidplane.http.routes import Route, Routes
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node import stats
from bidplane.node.api import ExecSession, PodRuntime
from bidplane.node.auth import NodeAuthorizer
from bidplane.node.streams import command, forward
from bidplane.node.streams.pipes import WebSocketPipe
from bidplane.node.streams.requests import NodeRequest, log_options, switch_protocols
from bidplane.telemetry import dcgm
from bidplane.telemetry.model import Counters
from bidplane.wire.streams import remotecommand

# The feature in `status.declaredFeatures` of a node that accepts kubectl's WebSockets itself.
WEBSOCKETS = "ExtendWebSocketsToKubelet"
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}
_METRICS = b"text/plain; version=0.0.4"

Handler = Callable[..., Awaitable[Reply | None]]


class Usage(Protocol):
    """Measures the use of CPU and memory; `disks` includes the disks, which takes longer."""

    async def read(self, *, disks: bool) -> stats.NodeUse: ...


class KubeletServer:
    """An ASGI app. `metrics` returns the counters of this node's devices for Prometheus."""

    def __init__(
        self,
        runtime: PodRuntime,
        gate: NodeAuthorizer,
        *,
        clock: Clock,
        metrics: Callable[[], Awaitable[Iterable[Counters]]] | None = None,
        usage: Usage | None = None,
    ) -> None:
        self._runtime, self._gate, self._clock = runtime, gate, clock
        self._metrics, self._usage = metrics, usage
        self._rates = stats.CpuRates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = NodeRequest(scope, receive)
        try:
            await self._gate.admit(
                request.credentials(), _VERBS.get(request.method, ""), request.subresources()
            )
            reply = await self._answer(request)
        except remotecommand.BadRequest as error:
            await send_reply(send, text_reply(str(error), 400))
        except ApiError as error:
            await send_reply(send, text_reply(str(error), error.code))
        except Disconnected:
            return
        else:
            if reply is not None:
                await send_while_connected(request, send, reply)

    async def _answer(self, request: NodeRequest) -> Reply | None:
        """Answer an authorized request; None when its connection was taken."""
        match = self.routes.find(request.method, request.parts)
        if match is None:
            raise _no_such_path(request)
        return await match.handler(self, request, *match.arguments)

    async def _healthz(self, request: NodeRequest) -> Reply:
        return text_reply(b"ok")

    async def _pods(self, request: NodeRequest) -> Reply:
        pods = {"kind": "PodList", "apiVersion": "v1", "metadata": {}}
        return json_reply({**pods, "items": self._runtime.pods()})

    async def _device_metrics(self, request: NodeRequest) -> Reply:
        if self._metrics is None:
            raise _no_such_path(request)
        return Reply(dcgm.exposition(await self._metrics()), content_type=_METRICS)

    async def _resource_metrics(self, request: NodeRequest) -> Reply:
        if self._usage is None:
            raise _no_such_path(request)
        page = stats.resource_metrics(await self._usage.read(disks=False))
        return Reply(page, content_type=_METRICS + b"; charset=utf-8")

    async def _summary(self, request: NodeRequest) -> Reply:
        if self._usage is None:
            raise _no_such_path(request)
        disks = not request.flag("only_cpu_and_memory")
        return json_reply(stats.summary(await self._usage.read(disks=disks), self._rates))

    async def _logs(self, request: NodeRequest, namespace: str, name: str, container: str) -> Reply:
        """Stream a container's log."""
        pod = self._find(namespace, name)
        options = log_options(request, now=self._clock.now())
        chunks = await self._runtime.logs(pod, container, options)
        return Reply(content_type=TEXT, chunks=chunks)

    async def _exec(
        self, request: NodeRequest, namespace: str, name: str, *uid_and_container: str
    ) -> None:
        *uid, container = uid_and_container
        pod = self._find(namespace, name, *uid)
        await self._command(request, pod, container, attach=False)

    async def _attach(
        self, request: NodeRequest, namespace: str, name: str, *uid_and_container: str
    ) -> None:
        *uid, container = uid_and_container
        pod = self._find(namespace, name, *uid)
        await self._command(request, pod, container, attach=True)

    async def _command(
        self, request: NodeRequest, pod: Object, container: str, *, attach: bool
    ) -> None:
        """Serve exec or attach over the upgraded connection."""
        options = remotecommand.wanted_from_kubelet(request.all_values())
        argv = request.values("command")
        if not attach and not argv:
            raise remotecommand.BadRequest("you must specify at least 1 command for the container")
        upgrade = request.stream_upgrade()
        if upgrade.protocol == "websocket":
            protocol, headers = request.websocket(remotecommand.OVER_WEBSOCKET)
            serve = command.over_websocket
        else:
            protocol, headers = request.spdy(remotecommand.OVER_SPDY)
            serve = command.over_spdy

        async def start() -> ExecSession:
            if attach:
                return await self._runtime.attach(pod, container, stdin=options.stdin)
            return await self._runtime.exec(
                pod, container, argv, stdin=options.stdin, tty=options.tty
            )

        pipe = await switch_protocols(upgrade, headers)
        await serve(pipe, protocol, options, start)

    async def _forward(self, request: NodeRequest, namespace: str, name: str, *uid: str) -> None:
        """Serve port-forward over the upgraded connection."""
        pod = self._find(namespace, name, *uid)
        upgrade = request.stream_upgrade()

        async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await self._runtime.connect(pod, port)

        if upgrade.protocol != "websocket":
            _, headers = request.spdy([remotecommand.PORT_FORWARD])
            await forward.over_spdy(await switch_protocols(upgrade, headers), connect)
            return
        protocol, headers = request.websocket(remotecommand.FORWARD_OVER_WEBSOCKET)
        if protocol == remotecommand.TUNNEL:
            pipe = WebSocketPipe(await switch_protocols(upgrade, headers))
            await forward.over_spdy(pipe, connect)
            return
        ports = remotecommand.ports(request.values("ports"))
        await forward.over_channels(
            await switch_protocols(upgrade, headers), protocol, ports, connect
        )

    def _find(self, namespace: str, name: str, uid: str = "") -> Object:
        """The pod of that name, and of that uid if one is given."""
        pod = self._runtime.find(namespace, name)
        if uid and pod["metadata"].get("uid") != uid:
            raise NotFound("pod does not exist")
        return pod

    routes: ClassVar[Routes[Handler]] = Routes(
        Route("GET|HEAD", "/healthz", _healthz),
        Route("GET", "/pods", _pods),
        Route("GET", "/metrics", _device_metrics),
        Route("GET", "/metrics/resource", _resource_metrics),
        Route("GET|POST", "/stats/summary", _summary),
        Route("GET", "/containerLogs/{namespace}/{name}/{container}", _logs),
        Route("GET|POST", "/exec/{namespace}/{name}/{container}", _exec),
        Route("GET|POST", "/exec/{namespace}/{name}/{uid}/{container}", _exec),
        Route("GET|POST", "/attach/{namespace}/{name}/{container}", _attach),
        Route("GET|POST", "/attach/{namespace}/{name}/{uid}/{container}", _attach),
        Route("GET|POST", "/portForward/{namespace}/{name}", _forward),
        Route("GET|POST", "/portForward/{namespace}/{name}/{uid}", _forward),
    )


def _no_such_path(request: NodeRequest) -> NotFound:
    return NotFound(f"no such path: {request.method} {request.path}")
