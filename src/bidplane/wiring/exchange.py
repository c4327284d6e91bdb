"""The exchange: rounds on an event loop of their own, and their HTTP side."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

from bidplane.exchange.service import Exchange
from bidplane.kube.client import Object
from bidplane.ledger import Ledger
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.node.agent import RUNTIME
from bidplane.node.fleet import SIMULATED
from bidplane.runtime.certificates import Certificates
from bidplane.runtime.installation import Installation
from bidplane.runtime.serve import serve
from bidplane.telemetry.dcgm import WORK_METRICS
from bidplane.telemetry.model import Counters
from bidplane.telemetry.pages import NodePages, url_of
from bidplane.telemetry.prometheus import PrometheusReader
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
    telling = Telling(installation, clock=clock)
    exchange = Exchange(
        client, ledger, installation.tokens(), clock=clock, counters=telling.counters
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(exchange.app, listener, certificates))
            group.create_task(exchange.run())
    finally:
        ledger.close()
        await client.close()
        await telling.close()


class Telling:
    """Who tells what GPUs do: the Prometheus an operator names, else our own nodes."""

    def __init__(self, installation: Installation, *, clock: Clock) -> None:
        address = os.environ.get("BIDPLANE_PROMETHEUS", "")
        self._prometheus = PrometheusReader(address) if address else None
        self._pages = NodePages(
            token=lambda: installation.owner_token(user="bidplane-exchange", now=clock.now()),
            ca_file=installation.ca_file,
        )

    async def counters(self, nodes: Sequence[Object]) -> Sequence[Counters]:
        if self._prometheus is not None:
            return await self._prometheus.read(only=WORK_METRICS)
        # A cluster's kubelets have pages of their own, with nothing of GPUs in them.
        ours = [node for node in nodes if _is_ours(node)]
        urls = {url for node in ours if (url := url_of(node))}
        return await self._pages.read(urls, only=WORK_METRICS)

    async def close(self) -> None:
        await self._pages.close()
        if self._prometheus is not None:
            await self._prometheus.close()


def _is_ours(node: Object) -> bool:
    return not {SIMULATED, RUNTIME}.isdisjoint(node["metadata"].get("labels") or {})
