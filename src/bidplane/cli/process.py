"""
The processes under `bidplane up`. Not for people: the supervisor starts them.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop
from cyclopts import App

from bidplane.machinery.clock import SystemClock
from bidplane.node import fleet as fleets
from bidplane.runtime.certificates import Certificates
from bidplane.runtime.installation import Installation
from bidplane.runtime.interpreter import tune
from bidplane.runtime.supervisor import end_with_supervisor
from bidplane.wiring.exchange import run_exchange
from bidplane.wiring.node import run_node
from bidplane.wiring.server import run_server

app = App(name="process", show=False, help=__doc__)

HOSTS = ["127.0.0.1", "localhost"]


@app.command
def server(data: Path, descriptor: int) -> None:
    """Planes, controllers, the public address."""
    where, certificates, listener = _inherit(data, descriptor)
    fleet = fleets.load(where.fleet) if where.fleet.exists() else None
    _run(run_server(where, listener, certificates, where.address(), fleet))


@app.command
def exchange(data: Path, descriptor: int) -> None:
    """Rounds, wallets, leases."""
    where, certificates, listener = _inherit(data, descriptor)
    _run(run_exchange(where, listener, certificates))


@app.command
def node(data: Path, descriptor: int) -> None:
    """The simulated nodes."""
    where, certificates, listener = _inherit(data, descriptor)
    fleet = fleets.load(where.fleet)
    real = where.machine()
    if real is not None:  # that one is this machine
        nodes = [node for node in fleet.nodes if node.name != real["name"]]
        fleet = msgspec.structs.replace(fleet, nodes=nodes)
    _run(run_node(where, listener, certificates, fleet))


@app.command
def machine(data: Path, descriptor: int) -> None:
    """This machine as one node of the fleet, as `bidplane node` with what `up` was told."""
    from bidplane.cli.node import node as be_a_node

    end_with_supervisor()
    where = Installation(data)
    told = where.machine()
    assert told is not None, "started by `up`, which writes it down"
    be_a_node(
        name=told["name"],
        fleet=where.fleet,
        data=data,
        trusted=told["trusted"],
        egress=told.get("egress", False),
        images=_path(told.get("images")),
        volumes=_path(told.get("volumes")),
        state=_path(told.get("state")),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _inherit(data: Path, descriptor: int) -> tuple[Installation, Certificates, socket.socket]:
    where = Installation(data)
    certificates = where.certificates(hosts=HOSTS, now=SystemClock().now())
    return where, certificates, socket.socket(fileno=descriptor)


def _run(work: Coroutine[Any, Any, None]) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ]
    )
    end_with_supervisor()
    tune()
    uvloop.run(_until_terminated(work))


async def _until_terminated(work: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return
