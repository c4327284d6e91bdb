"""
The client over HTTPS: for a plane of another process, or a real kube-apiserver.

Small calls go over connections of our own (`connections`), which cost a fraction of a general
client's; lists, watches and logs, which may be large or long, over such a client.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from bidplane.api.kinds import POD, SERVICE_ACCOUNT, Kind
from bidplane.errors import ApiError, Gone, Unavailable, api_error
from bidplane.kube.client import Listing, Object, WatchEvent
from bidplane.kube.connections import Broken, Connections

_MERGE_PATCH = "application/merge-patch+json"
_REQUEST_SECONDS = 30.0
# The server ends a watch after this long, so that a dead connection is noticed.
_WATCH_SECONDS = 300


class HttpClient:
    """A `kube.client.Client` for one endpoint, such as `https://HOST:PORT/planes/host`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str] = "",
        ca_file: str | None = None,
        ca_data: str | None = None,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        """
        `token` may be a function, for credentials that are renewed; `certificate` is two
        files, its own and its key's. Trusted is what the file or the PEM text names; with
        neither, what the system trusts.
        """
        self.url = url.rstrip("/")
        trust = ssl.create_default_context(cafile=ca_file, cadata=ca_data)
        if certificate is not None:
            trust.load_cert_chain(*certificate)
        self._token = token if callable(token) else lambda: token
        self._calls = Connections(self.url, trust, timeout=_REQUEST_SECONDS)
        self._base = urlsplit(self.url).path
        self._http = httpx2.AsyncClient(
            verify=trust,
            auth=_Bearer(self._token) if token else None,
            headers={"Accept": "application/json"},
            timeout=_REQUEST_SECONDS,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"<HttpClient {self.url}>"

    async def close(self) -> None:
        self._calls.close()
        await self._http.aclose()

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        return await self._call("GET", _path(kind, namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        body = await self._fetch(_path(kind, namespace), _selectors(labels, fields))
        # Items of a list leave out what the list already says of them.
        try:
            items = [
                {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                for item in body.get("items") or ()
            ]
            return Listing(items, body["metadata"]["resourceVersion"])
        except (KeyError, TypeError) as error:
            raise Unavailable(f"{self.url} answered with something else than a list") from error

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        params = _selectors(labels, fields) | {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        timeout = httpx2.Timeout(_REQUEST_SECONDS, read=_WATCH_SECONDS + 10.0)
        try:
            async with self._http.stream(
                "GET", self.url + _path(kind, namespace), params=params, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    raise _refusal(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    if line:
                        yield _event(msgspec.json.decode(line))
        except (httpx2.RequestError, msgspec.DecodeError) as error:
            # Also a line that was cut short: the server went in the middle of it.
            raise Unavailable(f"{self.url}: the watch broke off: {error}") from error

    async def create(
        self,
        kind: Kind,
        obj: Object,
        namespace: str | None = None,
        *,
        with_status: bool = False,
    ) -> Object:
        space = namespace or (obj.get("metadata") or {}).get("namespace") or "default"
        return await self._call("POST", _path(kind, space), body=obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        metadata = obj["metadata"]
        path = _path(kind, metadata.get("namespace"), metadata["name"], subresource)
        return await self._call("PUT", path, body=obj)

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        path = _path(kind, namespace, name, subresource)
        return await self._call("PATCH", path, body=patch, content_type=_MERGE_PATCH)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        await self._call("DELETE", _path(kind, namespace, name), body=options)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._call("POST", _path(POD, namespace, pod, "binding"), body=binding)

    async def logs(self, namespace: str, pod: str) -> AsyncIterator[bytes]:
        """What the pod's container prints, as it prints it, until it ends."""
        timeout = httpx2.Timeout(_REQUEST_SECONDS, read=None)
        url = self.url + _path(POD, namespace, pod, "log")
        try:
            async with self._http.stream(
                "GET", url, params={"follow": "true"}, headers={"Accept": "*/*"}, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    raise _refusal(response.status_code, await response.aread())
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx2.RequestError as error:
            raise Unavailable(f"{self.url}: the log broke off: {error}") from error

    async def request_token(self, namespace: str, account: str, request: Object) -> Object:
        """A token of a ServiceAccount: a TokenRequest, answered."""
        return await self._call(
            "POST", _path(SERVICE_ACCOUNT, namespace, account, "token"), body=request
        )

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": content_type}
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        try:
            answer = await self._calls.call(method, self._base + path, headers, content)
        except Broken as error:
            raise Unavailable(f"{self.url} does not answer: {error}") from error
        return self._read(answer.status, answer.body)

    async def _fetch(self, path: str, params: dict[str, str]) -> dict[str, Any]:
        try:
            response = await self._http.get(self.url + path, params=params)
        except httpx2.RequestError as error:
            raise Unavailable(f"{self.url} does not answer: {error}") from error
        return self._read(response.status_code, response.content)

    def _read(self, status: int, body: bytes) -> dict[str, Any]:
        if status >= 400:
            raise _refusal(status, body)
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise Unavailable(f"{self.url} is no Kubernetes API: {error}") from error


class _Bearer(httpx2.Auth):
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        yield request


def _path(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    inside = f"/namespaces/{quote(namespace, '')}" if namespace and kind.namespaced else ""
    tail = "".join(f"/{quote(part, '')}" for part in (name, subresource) if part)
    return f"{root}{inside}/{kind.plural}{tail}"


def _selectors(labels: str, fields: str) -> dict[str, str]:
    chosen = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in chosen.items() if value}


def _event(frame: Any) -> WatchEvent:
    if not isinstance(frame, dict) or not isinstance(frame.get("object"), dict):
        raise Unavailable("the watch answered with something else than an event")
    if frame.get("type") == "ERROR":
        status = frame["object"]
        code = status.get("code", 500)
        if code == 410:
            raise Gone(status.get("message", "the resourceVersion is too old"))
        raise api_error(code, status.get("reason", ""), status.get("message", ""))
    return WatchEvent(frame["type"], frame["object"])


def _refusal(code: int, body: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(body)
        return api_error(code, status.get("reason") or "", status.get("message") or "")
    except (msgspec.MsgspecError, AttributeError):
        return api_error(code, "", body.decode(errors="replace")[:500] or f"HTTP {code}")
