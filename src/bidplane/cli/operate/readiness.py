"""Waiting until a process of an installation works, not only runs."""

from __future__ import annotations

import asyncio

from bidplane.api.kinds import NODE
from bidplane.errors import ApiError, UserError
from bidplane.http.client.caller import HttpCaller, trust
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.installation import Installation
from bidplane.wiring.hostclient import host_client

_LONGEST_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LOG_LINES = 5


async def wait_ready(where: Installation, name: str, nodes: int) -> None:
    """Wait until `name` works; raise `UserError` with the end of its log if it never does."""
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            while not await _is_ready(where, name, nodes):
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        log = where.logs / f"{name}.log"
        last = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else []
        raise UserError(
            f"the {name} did not start within {_LONGEST_SECONDS:.0f} s; the end of {log}:\n"
            + "\n".join(last)
        ) from None


async def _is_ready(where: Installation, name: str, nodes: int) -> bool:
    address = where.address()
    try:
        if name in ("node", "machine"):
            client = host_client(where, user="bidplane-up", clock=SystemClock())
            try:
                listing = await client.list(NODE)
            finally:
                await client.close()
            return len(listing.items) >= nodes
        if name.startswith("activator"):  # no Endpoint can have this host, and it knows that
            async with HttpCaller(seconds=5.0) as http:
                return (await http.call("GET", address.activator_url)).code == 404
        url = address.url if name == "server" else address.exchange_url
        path = "/healthz" if name == "server" else "/readyz"
        async with HttpCaller(trust=trust(ca_file=where.ca_file), seconds=5.0) as http:
            answer = await http.call("GET", url + path)
            return answer.code == 200 and bool(where.address().host_uid)
    except ApiError:
        return False
