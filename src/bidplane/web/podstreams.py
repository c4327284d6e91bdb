"""
Pod streams: `kubectl logs`, `exec`, `attach`, `port-forward`, from a plane to the pod's node.

A pod in an agent's plane is another pod on the host; the host pod names its node, and the node has
the address of its server. After an upgrade the bytes are passed on unchanged: only the two ends
need to know whether they are SPDY or a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from urllib.parse import quote, urlencode

import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import NODE, POD
from bidplane.core.hosting.translation import host_name
from bidplane.errors import ApiError, NotFound, Unavailable
from bidplane.http.client.caller import AnswerStream, HttpCaller, NoAnswer, trust
from bidplane.http.client.forwarded import call_forwarded
from bidplane.http.client.upgraded import Streams, open_upgraded
from bidplane.http.extensions import Upgrade
from bidplane.kube.client import KubeClient, Object
from bidplane.runtime.identity.credentials import HOST_PLANE
from bidplane.wire.streams.remotecommand import PORT_FORWARD

_CHUNK = 64 << 10
# The headers of an upgrade that the node needs.
_FORWARDED_HEADERS = (
    b"sec-websocket-key",
    b"sec-websocket-version",
    b"sec-websocket-protocol",
    b"x-stream-protocol-version",
)


_HOP_BY_HOP = (
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
)
# Headers for the plane that a pod must not see, credentials above all.
_NOT_FOR_PODS = (*_HOP_BY_HOP, b"host", b"authorization", b"cookie", b"content-length", b"expect")


class RelayedResponse(msgspec.Struct, frozen=True):
    """A response of a pod that is passed on."""

    code: int
    headers: list[tuple[bytes, bytes]]
    body: AsyncIterator[bytes]


class PodEndpoint(msgspec.Struct, frozen=True):
    """The address of a pod's node, and the pod's name on the host."""

    address: str
    port: int
    namespace: str
    name: str

    def path(self, endpoint: str, container: str = "") -> str:
        parts = [endpoint, self.namespace, self.name, *([container] if container else [])]
        return "/" + "/".join(quote(part, "") for part in parts)

    @property
    def host(self) -> str:
        bare = f"[{self.address}]" if ":" in self.address else self.address
        return f"{bare}:{self.port}"


class NodeStreams:
    def __init__(
        self, host: Callable[[], KubeClient], *, token: Callable[[], str], ca_file: str
    ) -> None:
        self._host = host
        self._token = token
        self._trust = trust(ca_file=ca_file)
        self._http = HttpCaller(
            trust=self._trust, token=token, headers={"Accept-Encoding": "identity"}
        )

    async def logs(
        self, plane: str, pod: Object, container: str, params: Sequence[tuple[str, str]]
    ) -> AsyncIterator[bytes]:
        at = await self._find_endpoint(plane, pod)
        try:
            log = await self._http.open(
                "GET",
                f"https://{at.host}{at.path('containerLogs', container)}",
                params=list(params),
            )
            if log.code == 200:
                return _chunks(log)
            message = (await log.read()).decode(errors="replace")
        except NoAnswer as error:
            raise _no_answer() from error
        await log.close()
        raise ApiError(message, code=log.code, reason="BadRequest")

    async def tunnel(
        self,
        plane: str,
        pod: Object,
        endpoint: str,
        container: str,
        params: Sequence[tuple[str, str]],
        upgrade: Upgrade,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """
        Join the client to the pod's node until one of them ends.

        Raises `ApiError`, with the client's connection untouched, when the node refuses.
        """
        at = await self._find_endpoint(plane, pod)
        forwarded = [(name, value) for name, value in headers if name in _FORWARDED_HEADERS]
        query = urlencode(params)
        target = at.path(endpoint, container) + (f"?{query}" if query else "")
        head, (reader, writer) = await self._open_upgraded(at, target, upgrade.protocol, forwarded)
        try:
            theirs, ours = upgrade.take()
            ours.write(head)
            await _relay((theirs, ours), (reader, writer))
        finally:
            writer.close()

    async def request(
        self,
        plane: str,
        pod: Object,
        port: int,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
    ) -> RelayedResponse:
        """Return the response of a port of a pod to one HTTP request; raise `Unavailable`."""
        at = await self._find_endpoint(plane, pod)

        async def connect() -> Streams:
            version = [(b"x-stream-protocol-version", PORT_FORWARD.encode())]
            path = at.path("portForward")
            return (await self._open_upgraded(at, path, "SPDY/3.1", version))[1]

        name = pod["metadata"]["name"].encode()
        pod_headers = [(key, value) for key, value in headers if key not in _NOT_FOR_PODS]
        try:
            answer = await call_forwarded(connect, method, name, port, target, pod_headers, body)
        except NoAnswer as error:
            raise Unavailable(f"error trying to reach service: {error}") from error
        kept_headers = [(key, value) for key, value in answer.headers if key not in _HOP_BY_HOP]
        return RelayedResponse(answer.code, kept_headers, answer.body)

    async def _open_upgraded(
        self, at: PodEndpoint, target: str, protocol: str, headers: Sequence[tuple[bytes, bytes]]
    ) -> tuple[bytes, Streams]:
        """
        Return a connection to a node that has switched to `protocol`, and the head of its answer.
        """
        own = [
            (b"Host", at.host.encode()),
            (b"Authorization", f"Bearer {self._token()}".encode()),
        ]
        try:
            return await open_upgraded(
                at.address, at.port, target, protocol, trust=self._trust, headers=[*own, *headers]
            )
        except NoAnswer as error:
            raise _no_answer() from error

    async def close(self) -> None:
        await self._http.close()

    async def _find_endpoint(self, plane: str, pod: Object) -> PodEndpoint:
        host_pod = pod if plane == HOST_PLANE else await self._host_pod(plane, pod)
        if not host_pod["spec"].get("nodeName"):
            raise _does_not_run(host_pod)
        node = await self._host().get(NODE, host_pod["spec"]["nodeName"])
        status = node.get("status") or {}
        address = next(
            (a["address"] for a in status.get("addresses") or () if a["type"] == "InternalIP"), ""
        )
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        if not address or not port:
            name = node["metadata"]["name"]
            raise Unavailable(f'node "{name}" serves neither logs nor exec: it has no endpoint')
        metadata = host_pod["metadata"]
        return PodEndpoint(address, port, metadata["namespace"], metadata["name"])

    async def _host_pod(self, plane: str, pod: Object) -> Object:
        metadata = pod["metadata"]
        name = host_name(metadata["namespace"], metadata["name"])
        try:
            host_pod = await self._host().get(POD, name, host_namespace(plane))
        except NotFound:
            raise _does_not_run(pod) from None
        annotations = host_pod["metadata"].get("annotations") or {}
        if annotations.get(labels.PLANE_UID) != metadata["uid"]:
            raise _does_not_run(pod)  # the host pod is its predecessor, on its way out
        return host_pod


async def _relay(client: Streams, node: Streams) -> None:
    """Pass bytes in both directions until one end closes; then close the other."""
    tasks = [
        asyncio.create_task(_copy(client[0], node[1])),
        asyncio.create_task(_copy(node[0], client[1])),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in (client, node):
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


def _no_answer() -> Unavailable:
    return Unavailable("the pod's node does not answer; it may be restarting")


def _does_not_run(pod: Object) -> ApiError:
    name = pod["metadata"]["name"]
    return ApiError(f'pod "{name}" does not run on a node', code=400, reason="BadRequest")


async def _chunks(log: AnswerStream) -> AsyncIterator[bytes]:
    try:
        async for chunk in log.chunks():
            yield chunk
    except NoAnswer:
        return  # the node is gone; its output so far was passed on
    finally:
        await log.close()
