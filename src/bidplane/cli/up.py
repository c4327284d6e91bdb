"""`bidplane up`: the whole of it, in the foreground."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bidplane.cli.common import Data, command_name, console, installation
from bidplane.cli.day import CAST
from bidplane.cli.example import keep_trading
from bidplane.cli.process import HOSTS
from bidplane.errors import UserError
from bidplane.machinery.clock import SystemClock
from bidplane.node import fleet as fleets
from bidplane.node.process.addresses import choose
from bidplane.runtime.installation import Address, Installation
from bidplane.runtime.serve import bind
from bidplane.runtime.supervisor import Program, Supervisor
from bidplane.wiring.readiness import wait_ready

DEFAULT_FLEET = Path(__file__).parent.parent / "data" / "fleet.yaml"
_LOOPBACK = "127.0.0.1"


def up(
    *,
    data: Data = None,
    port: Annotated[int, Parameter(help="Where to listen; 0 takes any free port.")] = 6443,
    fleet: Annotated[
        Path | None, Parameter(help="Nodes and GPUs to simulate; kept for the next start.")
    ] = None,
    example: Annotated[
        bool, Parameter(negative="", help="With a few agents that go on trading.")
    ] = False,
    runtime: Annotated[
        Literal["simulated", "process"],
        Parameter(help="`process`: one node of the fleet is this machine, and runs its pods."),
    ] = "simulated",
    machine: Annotated[str, Parameter(help="Which node that is; else the first.")] = "",
    images: Annotated[Path | None, Parameter(help="What images stand for there.")] = None,
    volumes: Annotated[Path | None, Parameter(help="Which directories its pods may use.")] = None,
    trusted: Annotated[list[str] | None, Parameter(help="Agents it trusts.")] = None,
    egress: Annotated[
        bool, Parameter(negative="", help="Its pods reach beyond this machine (NAT).")
    ] = False,
) -> None:
    """
    Start Bidplane here, in the foreground. Ctrl-C stops it; the next start goes on from there.

    Examples:
        bidplane up
        bidplane up --fleet my-fleet.yaml --port 0 --data /tmp/try
        bidplane up --runtime process --machine box --images images.yaml
    """
    where = installation(data)
    running = Running(where, port=port, fleet=fleet)
    told = {"images": images, "volumes": volumes, "trusted": trusted, "egress": egress}
    running.use_machine(machine, told if runtime == "process" else None)
    asyncio.run(_foreground(running, example=example))


class Running:
    """An installation with its processes. Raises `UserError` before anything is started."""

    def __init__(self, where: Installation, *, port: int, fleet: Path | None) -> None:
        where.create()
        where.lock()
        if fleet is not None:
            fleets.load(fleet)
            shutil.copyfile(fleet, where.fleet)
        elif not where.fleet.exists():
            shutil.copyfile(DEFAULT_FLEET, where.fleet)
        self.fleet = fleets.load(where.fleet)
        self.where = where
        self.supervisor = Supervisor()
        self._listeners = {
            "server": bind(_LOOPBACK, port),
            "exchange": bind(_LOOPBACK, 0),
            "node": bind(_LOOPBACK, 0),
        }
        where.certificates(hosts=HOSTS, now=SystemClock().now())
        where.tokens()
        self.url = f"https://{_LOOPBACK}:{_port(self._listeners['server'])}"
        self.exchange_url = f"https://{_LOOPBACK}:{_port(self._listeners['exchange'])}"

    def use_machine(self, name: str, told: dict[str, Any] | None) -> None:
        """Be one node of the fleet ourselves, with real processes; None: simulate them all."""
        if told is None:
            self.where.write_machine(None)
            return
        names = [node.name for node in self.fleet.nodes]
        chosen = name or names[0]
        if chosen not in names:
            raise UserError(f"the fleet has no node {chosen!r} to be: it has {', '.join(names)}")
        if told["egress"]:
            choose("auto", egress=True)  # said here if it cannot be had
        files = {key: str(told[key].resolve()) for key in ("images", "volumes") if told[key]}
        state = str(self._machine_state(chosen))
        self.where.write_machine(
            {
                "name": chosen,
                "trusted": told["trusted"],
                "egress": told["egress"],
                "state": state,
                **files,
            }
        )
        self._listeners["machine"] = bind(_LOOPBACK, 0)

    def _machine_state(self, name: str) -> Path:
        """Root's pods have users of their own, who could not enter a private data directory."""
        folder = self.where.folder.resolve()
        if os.geteuid() != 0:
            return folder / "machine"
        digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
        return Path("/var/lib/bidplane/node") / f"{name}-{digest}"

    async def start(self) -> None:
        """Start all and wait until they answer."""
        try:
            known = self.where.address().host_uid
        except UserError:
            known = ""
        self.where.write_address(
            Address(url=self.url, exchange_url=self.exchange_url, host_uid=known)
        )
        # The server first: the others speak to it, with the identity it writes down.
        simulated = len(self.fleet.nodes) - ("machine" in self._listeners)
        for name in self._listeners:
            self.supervisor.start(self._program(name))
            nodes = len(self.fleet.nodes) if name == "machine" else simulated
            await wait_ready(self.where, name, nodes)

    async def stop(self) -> None:
        await self.supervisor.stop()
        for listener in self._listeners.values():
            listener.close()

    def _program(self, name: str) -> Program:
        descriptor = self._listeners[name].fileno()
        return Program(
            name=name,
            command=[
                sys.executable,
                "-m",
                "bidplane",
                "process",
                name,
                str(self.where.folder.resolve()),
                str(descriptor),
            ],
            inherits=[descriptor, self.where.lock_descriptor],
            log=self.where.logs / f"{name}.log",
        )


def _port(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


async def _foreground(running: Running, *, example: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop.set)
    starting = asyncio.create_task(running.start())
    stopping = asyncio.create_task(stop.wait())
    trading: asyncio.Task[None] | None = None
    try:
        with console.status("starting server, exchange and node …"):
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _greet(running, example=example)
            if example:
                trading = asyncio.create_task(keep_trading(running.where))
        await stopping
    finally:
        starting.cancel()
        if trading is not None:
            trading.cancel()
        await running.stop()
    console.print("stopped; `bidplane up` goes on from here")


def _nodes(running: Running) -> str:
    real, count = running.where.machine(), len(running.fleet.nodes)
    if real is None:
        return f"{count} simulated nodes"
    return f"{count - 1} simulated nodes, and {real['name']}: this machine"


def _greet(running: Running, *, example: bool) -> None:
    name = command_name()
    fleet = running.fleet
    gpus = sum(len(domain) for node in fleet.nodes for domain in node.link_domains())
    names = [character.name for character in CAST]
    data = f" --data {running.where.folder}" if "--data" in sys.argv else ""
    console.print(
        f"Bidplane is up at [bold]{running.url}[/bold]\n"
        f"  fleet  {_nodes(running)}, {gpus} GPUs\n"
        f"  data   {running.where.folder}\n"
        + (f"  agents {', '.join(names)} (already trading)\n" if example else "")
        + "\n"
        "Try, in another terminal:\n"
        f"  {name} agent create mine --priority 1 --refill 100{data}\n"
        "  kubectl --kubeconfig mine.kubeconfig apply -f examples/pod.yaml\n"
        f"  {name} market watch{data}\n\n"
        "Ctrl-C stops it.",
        soft_wrap=True,
    )
