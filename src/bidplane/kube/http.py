"""
The client over HTTPS: for a plane of another process, or a real kube-apiserver.

Small calls go over connections of our own (`connections`), which cost a fraction of a general
client's; lists, watches and logs, which may be large or long, over such a client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from bidplane.api.kinds import POD, SERVICE_ACCOUNT, Kind
from bidplane.errors import Gone, Unavailable, api_error
from bidplane.http.client.caller import HttpAnswer, HttpCaller, NoAnswer, refusal_in, trust
from bidplane.http.client.connections import Broken, Connections
from bidplane.kube.client import Listing, Object, WatchEvent

_MERGE_PATCH = "application/merge-patch+json"
_REQUEST_SECONDS = 30.0
# The server ends a watch after this long, so that a dead connection is noticed.
_WATCH_SECONDS = 300


class HttpClient:
    """A `kube.client.KubeClient` for one endpoint, such as `https://HOST:PORT/planes/host`."""

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
        Connect to `url`.

        `token` may be a function, for credentials that are renewed; `certificate` names two files,
        the certificate and its key. Without `ca_file` or `ca_data` (PEM text) the system's
        certificate authorities are trusted.
        """
        self.url = url.rstrip("/")
        trusted = trust(ca_file=ca_file, ca_data=ca_data, certificate=certificate)
        self._token = token if callable(token) else lambda: token
        self._calls = Connections(self.url, trusted, timeout=_REQUEST_SECONDS)
        self._base = urlsplit(self.url).path
        self._http = HttpCaller(
            trust=trusted,
            token=token,
            headers={"Accept": "application/json"},
            seconds=_REQUEST_SECONDS,
        )

    def __repr__(self) -> str:
        return f"<HttpClient {self.url}>"

    async def close(self) -> None:
        self._calls.close()
        await self._http.close()

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        return await self._call("GET", path_of(kind, namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        body = await self._fetch(path_of(kind, namespace), _selectors(labels, fields))
        # The items of a list omit apiVersion and kind, which the list itself names.
        try:
            items = [
                {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                for item in body.get("items") or ()
            ]
            return Listing(items, body["metadata"]["resourceVersion"])
        except (KeyError, TypeError) as error:
            raise Unavailable(f"{self.url} did not answer with a list") from error

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
        url = self.url + path_of(kind, namespace)
        try:
            async with await self._http.open(
                "GET", url, params=params, idle_seconds=_WATCH_SECONDS + 10.0
            ) as stream:
                await stream.accepted()
                async for line in stream.lines():
                    if line:
                        yield _event(msgspec.json.decode(line))
        except (NoAnswer, msgspec.DecodeError) as error:
            # Also a truncated line: the server stopped while writing it.
            raise Unavailable(f"{self.url}: the watch broke off: {error}") from error

    async def create(
        self,
        kind: Kind,
        obj: Object,
        namespace: str | None = None,
        *,
        with_status: bool = False,
    ) -> Object:
        target = namespace or (obj.get("metadata") or {}).get("namespace") or "default"
        return await self._call("POST", path_of(kind, target), body=obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "") -> Object:
        metadata = obj["metadata"]
        path = path_of(kind, metadata.get("namespace"), metadata["name"], subresource)
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
        path = path_of(kind, namespace, name, subresource)
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
        await self._call("DELETE", path_of(kind, namespace, name), body=options)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._call("POST", path_of(POD, namespace, pod, "binding"), body=binding)

    async def logs(self, namespace: str, pod: str) -> AsyncIterator[bytes]:
        """Yield the output of the pod's container as it is written, until it ends."""
        url = self.url + path_of(POD, namespace, pod, "log")
        # Not compressed: a log is passed on as it is written.
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        try:
            async with await self._http.open(
                "GET", url, params={"follow": "true"}, headers=headers
            ) as stream:
                await stream.accepted()
                async for chunk in stream.chunks():
                    yield chunk
        except NoAnswer as error:
            raise Unavailable(f"{self.url}: the log broke off: {error}") from error

    async def request_token(self, namespace: str, account: str, request: Object) -> Object:
        """Return the answer to a TokenRequest for a ServiceAccount."""
        return await self._call(
            "POST", path_of(SERVICE_ACCOUNT, namespace, account, "token"), body=request
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
    ) -> HttpAnswer:
        """Send any request below the endpoint, and return its whole answer, refusals too."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            return await self._http.call(
                method, self.url + path, params=params, headers=headers, body=content
            )
        except NoAnswer as error:
            raise Unavailable(f"{self.url} does not answer: {error}") from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Send a small request and return the decoded answer."""
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
        """GET a list and return it decoded."""
        try:
            answer = await self._http.call("GET", self.url + path, params=params)
        except NoAnswer as error:
            raise Unavailable(f"{self.url} does not answer: {error}") from error
        return self._read(answer.code, answer.body)

    def _read(self, status: int, body: bytes) -> dict[str, Any]:
        """Decode an answer; raises `ApiError` for a refusal."""
        if status >= 400:
            raise refusal_in(status, body)
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise Unavailable(f"{self.url} is no Kubernetes API: {error}") from error


def path_of(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """The API path of a collection, object or subresource."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    inside = f"/namespaces/{quote(namespace, '')}" if namespace and kind.namespaced else ""
    tail = "".join(f"/{quote(part, '')}" for part in (name, subresource) if part)
    return f"{root}{inside}/{kind.plural}{tail}"


def _selectors(labels: str, fields: str) -> dict[str, str]:
    """The query parameters of these selectors."""
    chosen = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in chosen.items() if value}


def _event(frame: Any) -> WatchEvent:
    """The event of a watch's line; raises `ApiError` for an error event."""
    if not isinstance(frame, dict) or not isinstance(frame.get("object"), dict):
        raise Unavailable("the watch did not answer with an event")
    if frame.get("type") == "ERROR":
        status = frame["object"]
        code = status.get("code", 500)
        if code == 410:
            raise Gone(status.get("message", "the resourceVersion is too old"))
        raise api_error(code, status.get("reason", ""), status.get("message", ""))
    return WatchEvent(frame["type"], frame["object"])
