"""
`kubectl logs`: from the plane that was asked, to the node that has them.

A pod in an agent's plane is another pod on the host; the host's pod names its node, and
the node says where its log endpoint is.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import httpx2

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import NODE, POD
from bidplane.core.translation import host_name
from bidplane.errors import ApiError, NotFound, Unavailable
from bidplane.kube.client import Client, Object
from bidplane.runtime.credentials import HOST_PLANE


class NodeLogs:
    def __init__(
        self, host: Callable[[], Client], *, token: Callable[[], str], ca_file: str
    ) -> None:
        self._host = host
        self._token = token
        self._http = httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=ca_file),
            timeout=httpx2.Timeout(10.0, read=None),
            # Whoever follows keeps a connection.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
        )

    async def open(
        self, plane: str, pod: Object, container: str, *, follow: bool, tail: int | None
    ) -> AsyncIterator[bytes]:
        host_pod = pod if plane == HOST_PLANE else await self._on_host(plane, pod)
        url = await self._endpoint(host_pod)
        namespace, name = host_pod["metadata"]["namespace"], host_pod["metadata"]["name"]
        params = {"follow": "true" if follow else "false"}
        if tail is not None:
            params["tailLines"] = str(tail)
        request = self._http.build_request(
            "GET",
            f"{url}/containerLogs/{namespace}/{name}/{quote(container, '')}",
            params=params,
            headers={"Authorization": f"Bearer {self._token()}"},
        )
        try:
            response = await self._http.send(request, stream=True)
            if response.status_code == 200:
                return _lines(response)
            message = (await response.aread()).decode(errors="replace")
        except httpx2.TransportError as error:
            raise Unavailable("the pod's node does not answer; it may be restarting") from error
        await response.aclose()
        raise ApiError(message, code=response.status_code, reason="BadRequest")

    async def close(self) -> None:
        await self._http.aclose()

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

    async def _endpoint(self, host_pod: Object) -> str:
        if not host_pod["spec"].get("nodeName"):
            raise _does_not_run(host_pod)
        node = await self._host().get(NODE, host_pod["spec"]["nodeName"])
        status = node.get("status") or {}
        address = next(
            (a["address"] for a in status.get("addresses") or () if a["type"] == "InternalIP"), ""
        )
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        if not address or not port:
            raise Unavailable(f'node "{node["metadata"]["name"]}" serves no logs')
        return f"https://{address}:{port}"


def _does_not_run(pod: Object) -> ApiError:
    name = pod["metadata"]["name"]
    return ApiError(f'pod "{name}" does not run on a node', code=400, reason="BadRequest")


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx2.TransportError:
        return  # the node went away; what was printed has been passed on
    finally:
        await response.aclose()
