"""Runs a probe of a container: over HTTP or gRPC, by a connection, or with a command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from bidplane.core.pods.probes import Probe
from bidplane.http.client.caller import HttpCaller, NoAnswer, UnreadableUrl, trust_anybody
from bidplane.kube.client import Object
from bidplane.node.process.container.sessions import CommandResult
from bidplane.node.process.probes import grpchealth

_AGENT = "kube-probe/bidplane"
_MOST_BYTES = 10240

RunCommand = Callable[
    [Sequence[str], float], Awaitable[CommandResult | None]
]  # run in the container


class ProbeResult(msgspec.Struct, frozen=True):
    good: bool
    message: str = ""


def port_number(container: Object, port: int | str) -> int:
    """Return a port by its number, or by its name in the container's ports."""
    if isinstance(port, int):
        return port
    for entry in container.get("ports") or ():
        if entry.get("name") == port:
            return int(entry["containerPort"])
    return int(port)  # ValueError: no such port


async def ask(
    probe: Probe, container: Object, address: str, run_command: RunCommand
) -> ProbeResult:
    """Run the probe once and return its result, within its timeout."""
    action = probe.action
    try:
        if action.get("httpGet"):
            return await http(action["httpGet"], container, address, probe.timeout)
        if action.get("tcpSocket"):
            return await _tcp(action["tcpSocket"], container, address, probe.timeout)
        if action.get("grpc"):
            service = action["grpc"].get("service") or ""
            problem = await grpchealth.check(
                address, action["grpc"]["port"], service, probe.timeout
            )
            return ProbeResult(not problem, problem)
        if action.get("exec"):
            return await _exec(action["exec"].get("command") or (), run_command, probe.timeout)
    except ValueError as error:
        return ProbeResult(False, f"no such port: {error}")
    return ProbeResult(True)


async def http(get: Object, container: Object, address: str, timeout: float) -> ProbeResult:
    scheme = (get.get("scheme") or "HTTP").lower()
    host = get.get("host") or address
    path = (get.get("path") or "/").lstrip("/")
    url = f"{scheme}://{host}:{port_number(container, get['port'])}/{path}"
    headers = {"User-Agent": _AGENT, "Accept": "*/*"}
    for header in get.get("httpHeaders") or ():
        headers[header["name"]] = header.get("value") or ""
    try:
        # Certificates are not verified, as in a kubelet: the address itself identifies the pod.
        async with asyncio.timeout(timeout):
            async with (
                HttpCaller(trust=trust_anybody(), seconds=None) as client,
                await client.open("GET", url, headers=headers) as response,
            ):
                body = b""
                async for data in response.chunks():
                    body += data
                    if len(body) > _MOST_BYTES:
                        break
    except TimeoutError:
        return ProbeResult(False, f'Get "{url}": context deadline exceeded')
    except (NoAnswer, UnreadableUrl, OSError) as error:
        return ProbeResult(False, f'Get "{url}": {error or type(error).__name__}')
    if 200 <= response.code < 400:
        return ProbeResult(True)
    return ProbeResult(False, f"HTTP probe failed with statuscode: {response.code}")


async def _tcp(action: Object, container: Object, address: str, timeout: float) -> ProbeResult:
    host = action.get("host") or address
    port = port_number(container, action["port"])
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return ProbeResult(False, f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return ProbeResult(False, f"dial tcp {host}:{port}: {error.strerror or error}")
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return ProbeResult(True)


async def _exec(command: Sequence[str], run_command: RunCommand, timeout: float) -> ProbeResult:
    ran = await run_command(command, timeout)
    if ran is None:
        return ProbeResult(
            False, f"command timed out: {' '.join(command)!r} timed out after {timeout:g}s"
        )
    return ProbeResult(ran.code == 0, ran.output.decode(errors="replace"))
