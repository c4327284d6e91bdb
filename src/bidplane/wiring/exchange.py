"""The exchange: rounds on an event loop of their own, and their HTTP side."""

from __future__ import annotations

import asyncio
import os
import socket

from bidplane.exchange.service import Exchange
from bidplane.ledger import Ledger
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.runtime.certificates import Certificates
from bidplane.runtime.installation import Installation
from bidplane.runtime.serve import serve
from bidplane.wiring.hostclient import host_client


async def run_exchange(
    installation: Installation,
    listener: socket.socket,
    certificates: Certificates,
    *,
    clock: Clock | None = None,
) -> None:
    """The exchange process; returns when cancelled."""
    clock = clock or SystemClock()
    client = host_client(installation, user="bidplane-exchange", clock=clock)
    # PostgreSQL, if the operator names one; else the file beside the planes.
    ledger = Ledger.open(os.environ.get("BIDPLANE_LEDGER") or installation.ledger)
    exchange = Exchange(client, ledger, installation.tokens(), clock=clock)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(exchange.app, listener, certificates))
            group.create_task(exchange.run())
    finally:
        ledger.close()
        await client.close()
