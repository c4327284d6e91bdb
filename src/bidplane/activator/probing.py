"""
The activator's own probe: does a pod answer? Kubernetes says so too, but later.

A probe is repeated until it succeeds or the pod is gone, first every 50 ms, later every second.
"""

from __future__ import annotations

import asyncio
import contextlib

from bidplane.http.proxy.pool import Address

ATTEMPT_SECONDS = 2.0
_FIRST_SECONDS, _LAST_SECONDS, _FACTOR = 0.05, 1.0, 1.3
_HEAD_BYTES = 16 << 10


async def wait_until_answering(address: Address, path: str, host: str) -> None:
    """Return once the pod takes a connection and, with a path, answers a GET with 2xx or 3xx."""
    delay = _FIRST_SECONDS
    while not await answers(address, path, host):
        await asyncio.sleep(delay)
        delay = min(_LAST_SECONDS, delay * _FACTOR)


async def answers(address: Address, path: str, host: str) -> bool:
    """Try once."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(ATTEMPT_SECONDS):
            reader, writer = await asyncio.open_connection(*address, limit=_HEAD_BYTES)
            if not path:
                return True
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bidplane-probe\r\n"
                "Accept: */*\r\nConnection: close\r\n\r\n".encode("latin-1")
            )
            return is_success(await reader.readline())
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return False
    finally:
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.transport.abort()


def is_success(status_line: bytes) -> bool:
    """Tell if a status line is HTTP/1 with 2xx or 3xx."""
    version, _, rest = status_line.partition(b" ")
    return version.startswith(b"HTTP/1.") and rest[:1] in (b"2", b"3") and rest[:3].isdigit()
