"""
The processes under `bidplane up`, started by its supervisor.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path

import msgspec
import uvloop
from cyclopts import App

from bidplane.cli.operate.services import FIRST
from bidplane.machinery.clock import SystemClock
from bidplane.node import fleet as fleets
from bidplane.runtime.identity.certificates import Certificates
from bidplane.runtime.installation import Installation
from bidplane.runtime.interpreter import tune
from bidplane.runtime.logs import configure_logs
from bidplane.runtime.supervision.supervisor import end_with_supervisor
from bidplane.wiring.activator import run_activator
from bidplane.wiring.exchange import run_exchange
from bidplane.wiring.node import run_node
from bidplane.wiring.server import run_server

app = App(name="process", show=False, help=__doc__)

HOSTS = ["127.0.0.1", "localhost"]


@app.command
def server(data: Path, descriptor: int) -> None:
    """Run planes, controllers and the public address."""
    target, certificates, listener = _inherit(data, descriptor)
    fleet = fleets.load(target.fleet) if target.fleet.exists() else None
    _run(run_server(target, listener, certificates, target.address(), fleet))


@app.command
def exchange(data: Path, descriptor: int) -> None:
    """Run rounds, wallets and leases."""
    target, certificates, listener = _inherit(data, descriptor)
    _run(run_exchange(target, listener, certificates))


@app.command
def activator(data: Path, descriptor: int, tls_descriptor: int = -1, *, name: str = FIRST) -> None:
    """Serve agents' services, which may sleep."""
    listeners = [socket.socket(fileno=d) for d in (descriptor, tls_descriptor) if d >= 0]
    _run(run_activator(Installation(data), *listeners, name=name))


@app.command
def node(data: Path, descriptor: int) -> None:
    """Run the simulated nodes."""
    target, certificates, listener = _inherit(data, descriptor)
    fleet = fleets.load(target.fleet)
    real = target.machine()
    if real is not None:  # this machine runs that node itself
        nodes = [node for node in fleet.nodes if node.name != real["name"]]
        fleet = msgspec.structs.replace(fleet, nodes=nodes)
    _run(run_node(target, listener, certificates, fleet))


@app.command
def machine(data: Path, descriptor: int) -> None:
    """Run this machine as one node of the fleet: `bidplane node` with the options of `up`."""
    from bidplane.cli.devices.node import node as be_a_node

    end_with_supervisor()
    target = Installation(data)
    options = target.machine()
    assert options is not None, "started by `up`, which writes the options"
    be_a_node(
        name=options["name"],
        fleet=target.fleet,
        data=data,
        trusted=options["trusted"],
        egress=options.get("egress", False),
        images=_path(options.get("images")),
        volumes=_path(options.get("volumes")),
        state=_path(options.get("state")),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _inherit(data: Path, descriptor: int) -> tuple[Installation, Certificates, socket.socket]:
    target = Installation(data)
    certificates = target.certificates(hosts=HOSTS, now=SystemClock().now())
    return target, certificates, socket.socket(fileno=descriptor)


def _run(work: Coroutine[object, object, None]) -> None:
    configure_logs()
    end_with_supervisor()
    tune()
    uvloop.run(_until_terminated(work))


async def _until_terminated(work: Coroutine[object, object, None]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return
