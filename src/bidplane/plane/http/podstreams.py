"""
pods/log, exec, attach, portforward, proxy: checked here, served by the node that runs the pod.

The texts of refusals are upstream's; users of kubectl know them.
"""

from __future__ import annotations

import re
from typing import Any

from bidplane.errors import ApiError
from bidplane.http.asgi import Send
from bidplane.plane.call import Call
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import PlaneRequest
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.get import get
from bidplane.wire import status
from bidplane.wire.rbac import Attributes
from bidplane.wire.streams import remotecommand

TUNNELS = ("exec", "attach", "portforward")
LOG_PARAMETERS = (
    "follow",
    "previous",
    "timestamps",
    "sinceSeconds",
    "sinceTime",
    "tailLines",
    "limitBytes",
)
_PROXIED = re.compile(r"/pods/[^/]+/proxy(/.*)?$")
_PATHS = {"exec": "exec", "attach": "attach", "portforward": "portForward"}


_OPTIONS = {
    "exec": "PodExecOptions",
    "attach": "PodAttachOptions",
    "portforward": "PodPortForwardOptions",
}


def options(call: Call, request: PlaneRequest) -> dict[str, Any]:
    """Return the options in a connection's query, as the object that admission sees."""
    connect_options: dict[str, Any] = {"kind": _OPTIONS[call.subresource], "apiVersion": "v1"}
    if call.subresource == "portforward":
        ports = [int(port) for port in request.values("ports") if port.isdecimal()]
        return {**connect_options, "ports": ports} if ports else connect_options
    for field in ("stdin", "stdout", "stderr", "tty"):
        if request.flag(field):
            connect_options[field] = True
    if container_name := request.query.get("container"):
        connect_options["container"] = container_name
    if command := request.values("command"):
        connect_options["command"] = list(command)
    return connect_options


async def tunnel(planes: Hosting, plane: Plane, call: Call, request: PlaneRequest) -> None:
    """Hand the client's connection to the pod's node; return when they are done."""
    # A WebSocket is opened with GET, and is more than reading all the same.
    plane.access.require(
        call.user,
        Attributes(
            verb="create",
            resource="pods",
            subresource=call.subresource,
            namespace=call.namespace,
            name=call.name,
        ),
    )
    pod = get(plane, call).obj
    params: list[tuple[str, str]]
    name = ""
    if call.subresource == "portforward":
        params = [("ports", value) for value in request.values("ports")]
    else:
        name = container(call.name, pod, request.query.get("container", ""))
        params = _kubelet_params(call, request)
    if not pod["spec"].get("nodeName"):
        raise status.bad_request(f"pod {call.name} does not have a host assigned")
    if planes.pod_streams is None:
        raise _no_node(f"pods/{call.subresource}")
    if request.upgrade is None:
        raise status.bad_request("Upgrade request required")
    await planes.pod_streams.tunnel(
        plane.name,
        pod,
        _PATHS[call.subresource],
        name,
        params,
        request.upgrade,
        request.raw_headers,
    )


async def proxy(
    planes: Hosting, plane: Plane, call: Call, request: PlaneRequest, send: Send
) -> None:
    """Forward one HTTP request to a port of the pod (`pods/NAME:PORT/proxy/PATH`)."""
    name, port = _split_port(call.name)
    call.name = name
    pod = get(plane, call).obj
    if not pod["spec"].get("nodeName"):
        raise status.bad_request(f"pod {name} does not have a host assigned")
    if planes.pod_streams is None:
        raise _no_node("pods/proxy")
    match = _PROXIED.search(request.path)
    target = (match[1] if match else "") or "/"
    query = request.query_text
    passed = await planes.pod_streams.request(
        plane.name,
        pod,
        port or _declared_port(pod),
        request.method,
        target + (f"?{query}" if query else ""),
        request.raw_headers,
        await request.body(),
    )
    await send({"type": "http.response.start", "status": passed.code, "headers": passed.headers})
    async for chunk in passed.body:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def is_proxied(path: str) -> bool:
    return "/proxy" in path and _PROXIED.search(path) is not None


def _split_port(pod_and_port: str) -> tuple[str, int]:
    """Split NAME, NAME:PORT or http:NAME:PORT; no port is 0."""
    parts = pod_and_port.split(":")
    if len(parts) == 3 and parts[0] in ("", "http"):
        parts = parts[1:]
    port = remotecommand.port(parts[1]) if len(parts) == 2 and parts[1] else 0
    if len(parts) > 2 or port is None:
        raise status.bad_request(f'invalid pod request "{pod_and_port}"')
    return parts[0], port


def _declared_port(pod: dict[str, Any]) -> int:
    """Return the first port that a container declares, as upstream; else 80."""
    for container_spec in pod["spec"]["containers"]:
        for port in container_spec.get("ports") or ():
            return int(port["containerPort"])
    return 80


def _kubelet_params(call: Call, request: PlaneRequest) -> list[tuple[str, str]]:
    """Return the parameters of exec or attach as a kubelet takes them."""
    flags = {name: request.values(name) for name in ("stdin", "stdout", "stderr", "tty")}
    try:
        exec_streams = remotecommand.wanted_from_api(flags)
    except remotecommand.BadRequest as error:
        raise status.bad_request(str(error)) from None
    command = request.values("command") if call.subresource == "exec" else []
    if call.subresource == "exec" and not command:
        raise status.bad_request("you must specify at least 1 command for the container")
    return remotecommand.to_kubelet(exec_streams, command)


def container(pod_name: str, pod: dict[str, Any], requested: str) -> str:
    """Return the name of the requested or only container; raise 400 when it is not clear."""
    spec = pod["spec"]
    container_names = [
        container_spec["name"]
        for field in ("initContainers", "containers", "ephemeralContainers")
        for container_spec in spec.get(field) or ()
    ]
    if requested:
        if requested not in container_names:
            raise status.bad_request(f"container {requested} is not valid for pod {pod_name}")
        return requested
    if len(spec["containers"]) == 1:
        return str(spec["containers"][0]["name"])
    raise status.bad_request(
        f"a container name must be specified for pod {pod_name}, choose one of:"
        f" [{' '.join(container_names)}]"
    )


def _no_node(subresource: str) -> ApiError:
    return status.refuse(
        501, "NotImplemented", f"no node serves {subresource} for this plane's pods"
    )
