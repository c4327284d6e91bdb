"""The exchange: rounds on an event loop of their own, and their HTTP side."""

from __future__ import annotations

import asyncio
import os
import socket

import structlog

from bidplane import __version__
from bidplane.exchange.http import closed_app
from bidplane.exchange.metrics import ExchangeMetrics
from bidplane.exchange.service import Exchange
from bidplane.exchange.stalls import FILE as WORK
from bidplane.exchange.workers.history import HistoryReader
from bidplane.exchange.workers.selectors import Selectors
from bidplane.http.server.serve import serve
from bidplane.kube.http import HttpClient
from bidplane.ledger import Ledger
from bidplane.ledger.watermark import FILE, LedgerLost
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.node.agent import RUNTIME
from bidplane.node.fleet import SIMULATED
from bidplane.runtime.identity.certificates import Certificates
from bidplane.runtime.installation import Installation
from bidplane.runtime.metrics import ProcessMetrics
from bidplane.runtime.supervision.health import Health
from bidplane.runtime.supervision.heartbeat import beat
from bidplane.runtime.supervision.probes import ProbedApp
from bidplane.telemetry.pages import NodePages
from bidplane.telemetry.prometheus import PrometheusReader
from bidplane.telemetry.source import CounterSource
from bidplane.wiring.hostclient import host_client

log = structlog.get_logger(__name__)


async def run_exchange(
    installation: Installation,
    listener: socket.socket,
    certificates: Certificates,
    *,
    clock: Clock | None = None,
) -> None:
    """Run the exchange process until cancelled."""
    clock = clock or SystemClock()
    client = host_client(installation, user="bidplane-exchange", clock=clock)
    # PostgreSQL, if the operator names one; else the file beside the planes.
    ledger_location = os.environ.get("BIDPLANE_LEDGER") or installation.ledger
    try:
        ledger = Ledger.open(ledger_location, mark=installation.folder / FILE)
    except LedgerLost as lost:
        await _report_problem(str(lost), client, listener, certificates)
        return
    history = HistoryReader(ledger_location)
    # An operator's Prometheus, if one is named; else the pages of our own nodes.
    prometheus = os.environ.get("BIDPLANE_PROMETHEUS", "")
    counter_source = CounterSource(
        NodePages(
            token=lambda: installation.owner_token(user="bidplane-exchange", now=clock.now()),
            ca_file=installation.ca_file,
        ),
        node_labels=(SIMULATED, RUNTIME),
        prometheus=PrometheusReader(prometheus) if prometheus else None,
    )
    exchange = Exchange(
        client,
        ledger,
        installation.tokens(),
        clock=clock,
        counters=counter_source.counters,
        selectors=Selectors(),
        history=history,
        work=installation.folder / WORK,
    )
    health = Health(notes=lambda: exchange.notes)
    exchange.add_checks(health)
    metrics = ProcessMetrics(version=__version__)
    metrics.add(ExchangeMetrics(exchange, ledger))
    app = ProbedApp(
        exchange.app,
        health=health,
        metrics=metrics,
        tokens=installation.tokens(),
        now=clock.now,
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(beat(health))
            group.create_task(metrics.sample())
            group.create_task(serve(app, listener, certificates))
            group.create_task(exchange.run())
    finally:
        await history.close()
        ledger.close()
        await client.close()
        await counter_source.close()


async def _report_problem(
    problem: str, client: HttpClient, listener: socket.socket, certificates: Certificates
) -> None:
    """Sell nothing, and report the problem to every client, until cancelled."""
    log.error("the exchange does not start", problem=problem)
    health = Health()
    health.add("ledger", lambda: problem)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(beat(health))
            group.create_task(serve(closed_app(problem), listener, certificates))
    finally:
        await client.close()
