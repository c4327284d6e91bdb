"""
`kubectl logs`, `exec`, `attach`, `port-forward`: from the plane that was asked, to the node.

A pod in an agent's plane is another pod on the host; the host's pod names its node, and
the node says where its server is. What the two say to each other after an upgrade is
passed on as it is: whether it is SPDY or a WebSocket, only they need to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from urllib.parse import quote, urlencode

import httpcore2
import httpx2
import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import NODE, POD
from bidplane.core.translation import host_name
from bidplane.errors import ApiError, NotFound, Unavailable
from bidplane.kube.client import Client, Object
from bidplane.runtime.connection import Upgrade
from bidplane.runtime.credentials import HOST_PLANE
from bidplane.web.forwarded import Ends, pool_through
from bidplane.wire.remotecommand import PORT_FORWARD

_CONNECT_SECONDS = 10.0
_LARGEST_HEAD = 64 << 10
_LARGEST_REFUSAL = 16 << 10
_CHUNK = 64 << 10
# What of a request to switch protocols is the node's business.
_PASSED = (
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
# What is said to the plane is not said to a pod: least of all who asks.
_NOT_FOR_PODS = (*_HOP_BY_HOP, b"host", b"authorization", b"cookie", b"content-length", b"expect")


class Passed(msgspec.Struct, frozen=True):
    """An answer that is passed on."""

    code: int
    headers: list[tuple[bytes, bytes]]
    body: AsyncIterator[bytes]


class Endpoint(msgspec.Struct, frozen=True):
    """Where a pod's node listens, and what the pod is called there."""

    address: str
    port: int
    namespace: str
    name: str

    def path(self, what: str, container: str = "") -> str:
        parts = [what, self.namespace, self.name, *([container] if container else [])]
        return "/" + "/".join(quote(part, "") for part in parts)

    @property
    def host(self) -> str:
        bare = f"[{self.address}]" if ":" in self.address else self.address
        return f"{bare}:{self.port}"


class NodeStreams:
    def __init__(
        self, host: Callable[[], Client], *, token: Callable[[], str], ca_file: str
    ) -> None:
        self._host = host
        self._token = token
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._http = httpx2.AsyncClient(
            verify=self._tls,
            timeout=httpx2.Timeout(_CONNECT_SECONDS, read=None),
            # Whoever follows keeps a connection.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
        )

    async def logs(
        self, plane: str, pod: Object, container: str, params: Sequence[tuple[str, str]]
    ) -> AsyncIterator[bytes]:
        at = await self._find(plane, pod)
        request = self._http.build_request(
            "GET",
            f"https://{at.host}{at.path('containerLogs', container)}",
            params=list(params),
            headers={"Authorization": f"Bearer {self._token()}"},
        )
        try:
            response = await self._http.send(request, stream=True)
            if response.status_code == 200:
                return _chunks(response)
            message = (await response.aread()).decode(errors="replace")
        except httpx2.TransportError as error:
            raise _no_answer() from error
        await response.aclose()
        raise ApiError(message, code=response.status_code, reason="BadRequest")

    async def tunnel(
        self,
        plane: str,
        pod: Object,
        what: str,
        container: str,
        params: Sequence[tuple[str, str]],
        upgrade: Upgrade,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """
        Join the client to the pod's node until one of them ends.

        Raises `ApiError`, with the client's connection untouched, when the node refuses.
        """
        at = await self._find(plane, pod)
        wanted = [(name, value) for name, value in headers if name in _PASSED]
        query = urlencode(params)
        target = at.path(what, container) + (f"?{query}" if query else "")
        head, (reader, writer) = await self._switched(at, target, upgrade.protocol, wanted)
        try:
            theirs, ours = upgrade.take()
            ours.write(head)
            await _join((theirs, ours), (reader, writer))
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
    ) -> Passed:
        """What a port of a pod answers to one HTTP request; raises `Unavailable`."""
        at = await self._find(plane, pod)

        async def connect() -> Ends:
            version = [(b"x-stream-protocol-version", PORT_FORWARD.encode())]
            path = at.path("portForward")
            return (await self._switched(at, path, "SPDY/3.1", version))[1]

        pool = pool_through(connect)
        name = pod["metadata"]["name"].encode()
        kept = [(key, value) for key, value in headers if key not in _NOT_FOR_PODS]
        try:
            response = await pool.handle_async_request(
                httpcore2.Request(
                    method,
                    httpcore2.URL(
                        scheme=b"http", host=name, port=port, target=target.encode("latin-1")
                    ),
                    headers=[
                        (b"host", name + b":%d" % port),
                        *kept,
                        *([(b"content-length", b"%d" % len(body))] if body else []),
                    ],
                    content=body,
                    extensions={"timeout": {"connect": _CONNECT_SECONDS}},
                )
            )
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as why:
            await pool.aclose()
            raise Unavailable(f"error trying to reach service: {why}") from why
        except ApiError:
            await pool.aclose()
            raise
        shown = [(key.lower(), value) for key, value in response.headers]
        return Passed(
            response.status,
            [(key, value) for key, value in shown if key not in _HOP_BY_HOP],
            _body(pool, response),
        )

    async def _switched(
        self, at: Endpoint, target: str, protocol: str, headers: Sequence[tuple[bytes, bytes]]
    ) -> tuple[bytes, Ends]:
        """A connection to a node that speaks `protocol` now, and how the node said so."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    at.address, at.port, ssl=self._tls, limit=_LARGEST_HEAD
                )
        except (OSError, TimeoutError) as error:
            raise _no_answer() from error
        try:
            writer.write(self._request(target, at.host, protocol, headers))
            async with asyncio.timeout(_CONNECT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                answer = _Head(head)
                if answer.code == 101:
                    return head, (reader, writer)
                message = await _refusal(reader, answer.length)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, _NoHttp) as error:
            writer.close()
            raise _no_answer() from error
        except asyncio.LimitOverrunError as error:
            writer.close()
            raise _no_answer() from error
        writer.close()
        raise ApiError(message, code=answer.code, reason="BadRequest")

    def _request(
        self, target: str, host: str, protocol: str, headers: Sequence[tuple[bytes, bytes]]
    ) -> bytes:
        method = "GET" if protocol == "websocket" else "POST"
        lines = [
            f"{method} {target} HTTP/1.1".encode(),
            f"Host: {host}".encode(),
            f"Authorization: Bearer {self._token()}".encode(),
            b"Connection: Upgrade",
            b"Upgrade: " + protocol.encode("latin-1"),
            *([b"Content-Length: 0"] if method == "POST" else []),
            *(name + b": " + value for name, value in headers),
        ]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    async def close(self) -> None:
        await self._http.aclose()

    async def _find(self, plane: str, pod: Object) -> Endpoint:
        host_pod = pod if plane == HOST_PLANE else await self._on_host(plane, pod)
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
        return Endpoint(address, port, metadata["namespace"], metadata["name"])

    async def _on_host(self, plane: str, pod: Object) -> Object:
        metadata = pod["metadata"]
        name = host_name(metadata["namespace"], metadata["name"])
        try:
            found = await self._host().get(POD, name, host_namespace(plane))
        except NotFound:
            raise _does_not_run(pod) from None
        annotations = found["metadata"].get("annotations") or {}
        if annotations.get(labels.PLANE_UID) != metadata["uid"]:
            raise _does_not_run(pod)  # what is there is its predecessor, leaving
        return found


class _NoHttp(Exception):
    """What answered is no HTTP server."""


class _Head:
    """The status line of an answer, and how long its body is if it says so."""

    def __init__(self, raw: bytes) -> None:
        first, *lines = raw.split(b"\r\n")
        status = _STATUS.match(first)
        if status is None:
            raise _NoHttp
        self.code = int(status[1])
        headers = {key.strip().lower(): value.strip() for key, _, value in map(_parted, lines)}
        length = headers.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() else None


_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |$)")


def _parted(line: bytes) -> tuple[bytes, bytes, bytes]:
    return line.partition(b":")


async def _refusal(reader: asyncio.StreamReader, length: int | None) -> str:
    """The body of a refusal; without a length it is in chunks, of which the first will do."""
    if length is not None:
        body = await reader.readexactly(min(length, _LARGEST_REFUSAL))
    else:
        line = (await reader.readuntil(b"\r\n")).strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", line):
            raise _NoHttp
        size = int(line, 16)
        body = await reader.readexactly(min(size, _LARGEST_REFUSAL))
    return body.decode(errors="replace").strip()


async def _body(
    pool: httpcore2.AsyncConnectionPool, response: httpcore2.Response
) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_stream():
            yield chunk
    except httpcore2.NetworkError:
        return  # the pod went away; what it said has been passed on
    finally:
        await pool.aclose()


async def _join(one: Ends, other: Ends) -> None:
    """Pass on what each says until one hangs up; then the other hears all, and the end."""
    tasks = [
        asyncio.create_task(_copy(one[0], other[1])),
        asyncio.create_task(_copy(other[0], one[1])),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in (one, other):
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


async def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx2.TransportError:
        return  # the node went away; what was printed has been passed on
    finally:
        await response.aclose()
