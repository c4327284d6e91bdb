"""Asks a container how it is: over HTTP or gRPC, by a connection, or with a command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import httpx2
import msgspec

from bidplane.core.pods.probes import Probe
from bidplane.kube.client import Object
from bidplane.node.process import grpchealth
from bidplane.node.process.sessions import Ran

_AGENT = "kube-probe/bidplane"
_MOST_BYTES = 10240

Beside = Callable[[Sequence[str], float], Awaitable[Ran | None]]  # run in the container


class Answer(msgspec.Struct, frozen=True):
    good: bool
    said: str = ""


def port_number(container: Object, port: Any) -> int:
    """A port by its number, or by its name in the container's ports."""
    if isinstance(port, int):
        return port
    for known in container.get("ports") or ():
        if known.get("name") == port:
            return int(known["containerPort"])
    return int(port)  # ValueError: no such port


async def ask(probe: Probe, container: Object, address: str, beside: Beside) -> Answer:
    """One answer, within the probe's timeout."""
    action = probe.action
    try:
        if action.get("httpGet"):
            return await http(action["httpGet"], container, address, probe.timeout)
        if action.get("tcpSocket"):
            return await _tcp(action["tcpSocket"], container, address, probe.timeout)
        if action.get("grpc"):
            service = action["grpc"].get("service") or ""
            said = await grpchealth.check(address, action["grpc"]["port"], service, probe.timeout)
            return Answer(not said, said)
        if action.get("exec"):
            return await _exec(action["exec"].get("command") or (), beside, probe.timeout)
    except ValueError as error:
        return Answer(False, f"no such port: {error}")
    return Answer(True)


async def http(get: Object, container: Object, address: str, timeout: float) -> Answer:
    scheme = (get.get("scheme") or "HTTP").lower()
    host = get.get("host") or address
    path = (get.get("path") or "/").lstrip("/")
    url = f"{scheme}://{host}:{port_number(container, get['port'])}/{path}"
    headers = {"User-Agent": _AGENT, "Accept": "*/*"}
    for header in get.get("httpHeaders") or ():
        headers[header["name"]] = header.get("value") or ""
    try:
        # A certificate says nothing here: whoever answers on that address is the pod.
        async with asyncio.timeout(timeout):
            async with (
                httpx2.AsyncClient(verify=False, trust_env=False, timeout=None) as client,
                client.stream("GET", url, headers=headers) as response,
            ):
                said = b""
                async for data in response.aiter_raw():
                    said += data
                    if len(said) > _MOST_BYTES:
                        break
    except TimeoutError:
        return Answer(False, f'Get "{url}": context deadline exceeded')
    except (httpx2.HTTPError, OSError) as error:
        return Answer(False, f'Get "{url}": {error or type(error).__name__}')
    if 200 <= response.status_code < 400:
        return Answer(True)
    return Answer(False, f"HTTP probe failed with statuscode: {response.status_code}")


async def _tcp(action: Object, container: Object, address: str, timeout: float) -> Answer:
    host = action.get("host") or address
    port = port_number(container, action["port"])
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return Answer(False, f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return Answer(False, f"dial tcp {host}:{port}: {error.strerror or error}")
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return Answer(True)


async def _exec(command: Sequence[str], beside: Beside, timeout: float) -> Answer:
    ran = await beside(command, timeout)
    if ran is None:
        return Answer(
            False, f"command timed out: {' '.join(command)!r} timed out after {timeout:g}s"
        )
    return Answer(ran.code == 0, ran.output.decode(errors="replace"))
