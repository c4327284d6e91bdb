"""
Health checks over gRPC, by the standard protocol (`grpc.health.v1`).

One unary call: a request of a few bytes over HTTP/2 without TLS, as the kubelet makes it.
"""

from __future__ import annotations

import asyncio

from bidplane.http.client.caller import HttpCaller, NoAnswer

_AGENT = "kube-probe/bidplane"
_METHOD = "/grpc.health.v1.Health/Check"
_SERVING = 1
_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_UNIMPLEMENTED = "12"


async def check(host: str, port: int, service: str, timeout: float) -> str:
    """Return the error as the kubelet words it; an empty text if the service is healthy."""
    body = _framed(_request(service))
    headers = {
        "content-type": "application/grpc",
        "te": "trailers",
        "user-agent": _AGENT,
        "grpc-timeout": f"{max(int(timeout * 1000), 1)}m",
    }
    try:
        async with (
            asyncio.timeout(timeout),
            HttpCaller(http2=True, seconds=None) as client,
        ):
            url = f"http://{host}:{port}{_METHOD}"
            answer = await client.call("POST", url, body=body, headers=headers)
    except TimeoutError:
        return f"timeout: health rpc did not complete within {timeout:g}s"
    except (NoAnswer, OSError) as error:
        problem = error or type(error).__name__
        return f'timeout: failed to connect service "{host}:{port}" within {timeout:g}s: {problem}'
    failed = answer.headers.get("grpc-status", "0")
    if failed == _UNIMPLEMENTED or answer.code == 404:
        return "error: this server does not implement the grpc health protocol (grpc.health.v1)"
    if failed != "0" or answer.code != 200:
        problem = answer.headers.get("grpc-message") or f"status {failed}"
        return f"error: health rpc failed: {problem}"
    serving_status = _status(answer.body)
    if serving_status is None:
        return "error: health rpc failed: the response is empty"
    if serving_status != _SERVING:
        return f'service unhealthy (responded with "{_NAMES.get(serving_status, serving_status)}")'
    return ""


def _request(service: str) -> bytes:
    """A HealthCheckRequest: one string, its first field."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _status(body: bytes) -> int | None:
    """Return the status in a HealthCheckResponse; protobuf leaves out a zero."""
    if len(body) < 5:
        return None
    message = body[5 : 5 + int.from_bytes(body[1:5], "big")]
    return message[1] if message[:1] == b"\x08" and len(message) > 1 else 0
