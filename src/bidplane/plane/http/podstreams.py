"""
pods/log, exec, attach, portforward, proxy: checked here, served by whoever runs the pod.

The words of refusals are upstream's; kubectl's users know them.
"""

from __future__ import annotations

import re
from typing import Any

from bidplane.errors import ApiError
from bidplane.plane.call import Call
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import Request, Send
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.get import get
from bidplane.wire import remotecommand, status
from bidplane.wire.rbac import Attributes

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


async def tunnel(planes: Hosting, plane: Plane, call: Call, request: Request) -> None:
    """Hand the client's connection to the pod's node; returns when they are done."""
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
        params = _command(call, request)
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


async def proxy(planes: Hosting, plane: Plane, call: Call, request: Request, send: Send) -> None:
    """`pods/NAME:PORT/proxy/PATH`: one HTTP request to a port of the pod."""
    name, port = _port(call.name)
    call.name = name
    pod = get(plane, call).obj
    if not pod["spec"].get("nodeName"):
        raise status.bad_request(f"pod {name} does not have a host assigned")
    if planes.pod_streams is None:
        raise _no_node("pods/proxy")
    found = _PROXIED.search(request.path)
    target = (found[1] if found else "") or "/"
    query = request.query_text
    passed = await planes.pod_streams.request(
        plane.name,
        pod,
        port or _declared(pod),
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


def _port(asked: str) -> tuple[str, int]:
    """NAME, NAME:PORT or http:NAME:PORT, taken apart; no port is 0."""
    parts = asked.split(":")
    if len(parts) == 3 and parts[0] in ("", "http"):
        parts = parts[1:]
    port = remotecommand.port(parts[1]) if len(parts) == 2 and parts[1] else 0
    if len(parts) > 2 or port is None:
        raise status.bad_request(f'invalid pod request "{asked}"')
    return parts[0], port


def _declared(pod: dict[str, Any]) -> int:
    """The first port its containers say they have, as upstream; else that of the web."""
    for one in pod["spec"]["containers"]:
        for port in one.get("ports") or ():
            return int(port["containerPort"])
    return 80


def _command(call: Call, request: Request) -> list[tuple[str, str]]:
    given = {name: request.values(name) for name in ("stdin", "stdout", "stderr", "tty")}
    try:
        wanted = remotecommand.wanted_from_api(given)
    except remotecommand.BadRequest as error:
        raise status.bad_request(str(error)) from None
    words = request.values("command") if call.subresource == "exec" else []
    if call.subresource == "exec" and not words:
        raise status.bad_request("you must specify at least 1 command for the container")
    return remotecommand.to_kubelet(wanted, words)


def container(pod_name: str, pod: dict[str, Any], asked: str) -> str:
    """The container that is meant; 400 when that is not clear."""
    spec = pod["spec"]
    found = [
        one["name"]
        for field in ("initContainers", "containers", "ephemeralContainers")
        for one in spec.get(field) or ()
    ]
    if asked:
        if asked not in found:
            raise status.bad_request(f"container {asked} is not valid for pod {pod_name}")
        return asked
    if len(spec["containers"]) == 1:
        return str(spec["containers"][0]["name"])
    raise status.bad_request(
        f"a container name must be specified for pod {pod_name}, choose one of: [{' '.join(found)}]"
    )


def _no_node(what: str) -> ApiError:
    return status.refuse(501, "NotImplemented", f"no node serves {what} for this plane's pods")
