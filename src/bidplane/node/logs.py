"""
The kubelet's log endpoint, for simulated pods.

What a simulated pod "printed" is a function of the pod and the time, one line a second,
so a restart of the node loses none of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock, parse_rfc3339, rfc3339
from bidplane.node.simulated import SimulatedNodes, began_at, devices_of
from bidplane.runtime.credentials import InvalidToken, Tokens
from bidplane.runtime.serve import while_connected

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class LogServer:
    """ASGI: `GET /containerLogs/NAMESPACE/POD/CONTAINER?follow=true&tailLines=10`."""

    def __init__(self, nodes: SimulatedNodes, tokens: Tokens, *, clock: Clock) -> None:
        self._nodes = nodes
        self._tokens = tokens
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._authorise(scope)
            pod, container = self._find(scope["path"])
            follow, tail = _options(scope["query_string"].decode("latin-1"))
        except ApiError as error:
            await _answer(send, error.code, str(error).encode())
            return
        await while_connected(
            receive, self._print(send, self.lines(pod, container, follow=follow, tail=tail))
        )

    async def _print(self, send: Send, lines: AsyncIterator[bytes]) -> None:
        await _start(send, 200)
        async for line in lines:
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def lines(
        self, pod: Object, container: str, *, follow: bool, tail: int | None
    ) -> AsyncIterator[bytes]:
        printed = self._printed(pod, container)
        for line in printed if tail is None else printed[len(printed) - min(tail, len(printed)) :]:
            yield line
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        while follow:
            await self._clock.sleep(1.0)
            current = self._nodes.pods.get(*key)
            if current is None or current["metadata"]["uid"] != pod["metadata"]["uid"]:
                return
            now = self._printed(current, container)
            restarted = now[:1] != printed[:1]
            for line in now if restarted else now[len(printed) :]:
                yield line
            printed = now
            if current["status"]["phase"] != "Running":
                return

    def _printed(self, pod: Object, container: str) -> list[bytes]:
        began = parse_rfc3339(began_at(pod))
        devices = devices_of(pod)
        ended = _ended_at(pod)
        until = ended if ended is not None else self._clock.now()
        lines = [f"{rfc3339(began)} {container}: simulated on {', '.join(devices) or 'no GPU'}\n"]
        lines += [
            f"{rfc3339(began + second)} {container}: second {second}\n"
            for second in range(1, int(until - began) + 1)
        ]
        if ended is not None:
            lines.append(f"{rfc3339(ended)} {container}: ended\n")
        return [line.encode() for line in lines]

    def _authorise(self, scope: Scope) -> None:
        header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        try:
            identity = self._tokens.verify(header.removeprefix("Bearer "), now=self._clock.now())
        except InvalidToken as error:
            raise ApiError(str(error), code=401, reason="Unauthorized") from error
        if not identity.is_owner:
            raise ApiError("only the owner may ask a node", code=403, reason="Forbidden")

    def _find(self, path: str) -> tuple[Object, str]:
        parts = path.strip("/").split("/")
        if len(parts) != 4 or parts[0] != "containerLogs":
            raise NotFound(f"nothing is served at {path}")
        _, namespace, name, container = parts
        pod = self._nodes.pods.get(namespace, name)
        if pod is None:
            raise NotFound(f'pods "{name}" not found on this node')
        if container not in [known["name"] for known in pod["spec"]["containers"]]:
            raise ApiError(
                f"container {container} is not valid for pod {name}",
                code=400,
                reason="BadRequest",
            )
        if not (pod.get("status") or {}).get("startTime"):
            raise ApiError(
                f'container "{container}" in pod "{name}" is waiting to start',
                code=400,
                reason="BadRequest",
            )
        return pod, container


def _options(query: str) -> tuple[bool, int | None]:
    given = parse_qs(query)
    tail = given.get("tailLines", [""])[0]
    if tail and not (tail.isascii() and tail.isdecimal() and len(tail) < 10):
        raise ApiError(f"tailLines: {tail!r} is not a number", code=400, reason="BadRequest")
    return given.get("follow", [""])[0] == "true", int(tail) if tail else None


def _ended_at(pod: Object) -> float | None:
    for container in pod["status"].get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return parse_rfc3339(ended["finishedAt"])
    return None


async def _start(send: Send, code: int) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": code, "headers": headers})


async def _answer(send: Send, code: int, body: bytes) -> None:
    await _start(send, code)
    await send({"type": "http.response.body", "body": body})
