"""`bidplane up`: a whole installation, in the foreground."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bidplane.cli.common import Data, command_name, console, installation
from bidplane.cli.gate.flying import PilotMode, drift_from, keep_piloting
from bidplane.cli.operate.process import HOSTS
from bidplane.cli.operate.readiness import wait_ready
from bidplane.cli.operate.services import FIRST, ServiceListeners, ServiceOptions
from bidplane.cli.story import service as example_service
from bidplane.cli.story.day import AGENTS
from bidplane.cli.story.example import keep_trading
from bidplane.core.activation.hostassignment import DEFAULT_DOMAIN
from bidplane.errors import UserError
from bidplane.http.server.serve import bind, bind_near
from bidplane.ledger import Ledger
from bidplane.ledger.watermark import FILE
from bidplane.machinery.clock import SystemClock
from bidplane.node import fleet as fleets
from bidplane.node.process.network.addresses import choose
from bidplane.pilot.webhook import Webhook
from bidplane.plane.planes import check_keys
from bidplane.runtime.installation import Address, Installation
from bidplane.runtime.supervision.monitor import Monitor
from bidplane.runtime.supervision.supervisor import SupervisedProgram, Supervisor
from bidplane.storage import sealing

DEFAULT_FLEET = Path(__file__).parents[2] / "data" / "fleet.yaml"
DEFAULT_PORT = 6443
_READY_SECONDS = 10.0
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")
_LOOPBACK = "127.0.0.1"


def up(
    *,
    data: Data = None,
    port: Annotated[
        int | None,
        Parameter(
            show_default=False,
            help="The port to listen on; 0 takes any. Else the last one, at first 6443.",
        ),
    ] = None,
    fleet: Annotated[
        Path | None, Parameter(help="Nodes and GPUs to simulate; kept for the next start.")
    ] = None,
    example: Annotated[
        bool, Parameter(negative="", help="Start a few example agents that keep trading.")
    ] = False,
    runtime: Annotated[
        Literal["simulated", "process"],
        Parameter(help="`process`: this machine is one node of the fleet, and runs its pods."),
    ] = "simulated",
    machine: Annotated[str, Parameter(help="The node that is this machine; else the first.")] = "",
    images: Annotated[
        Path | None, Parameter(help="A file that maps image names to programs of this machine.")
    ] = None,
    volumes: Annotated[
        Path | None, Parameter(help="A file that lists the directories that its pods may use.")
    ] = None,
    trusted: Annotated[
        list[str] | None, Parameter(help="Agents whose pods may access this machine.")
    ] = None,
    egress: Annotated[
        bool, Parameter(negative="", help="Let its pods reach other machines (NAT).")
    ] = False,
    encryption_config: Annotated[
        Path | None,
        Parameter(help="An EncryptionConfiguration for secrets at rest; kept for the next start."),
    ] = None,
    domain: Annotated[
        str,
        Parameter(
            show_default=False,
            help="Agents' services have names below it, as NAME.AGENT.DOMAIN; kept for the next"
            " start, at first `localhost`.",
        ),
    ] = "",
    services: ServiceOptions | None = None,
    pilot: Annotated[
        PilotMode | None,
        Parameter(help="Run the pilot's rules, too; with `shadow` nothing of them is applied."),
    ] = None,
    desired: Annotated[
        Path | None, Parameter(help="A folder that declares Pools and Agents: the pilot's drift.")
    ] = None,
    webhook: Annotated[
        str, Parameter(help="Where the pilot posts Proposals and digests, as Slack reads them.")
    ] = "",
) -> None:
    """
    Start Bidplane local, in the foreground. Ctrl-C stops it; the next start continues from there.

    For example:
        bidplane up
        bidplane up --fleet my-fleet.yaml --port 0 --data /tmp/try
        bidplane up --runtime process --machine box --images images.yaml
        bidplane up --pilot shadow
    """
    target = installation(data)
    if desired is not None and pilot is None:
        raise UserError("--desired: the pilot compares with it, so give --pilot propose, too")
    if webhook and pilot is None:
        raise UserError("--webhook: the pilot posts there, so give --pilot propose, too")
    drift_from(desired)
    tell = Webhook(webhook).tell if webhook else None
    local = None
    if example and runtime == "simulated" and fleet is None:
        local = example_service.prepare(target, DEFAULT_FLEET)
    if local is not None:
        runtime, machine, images = "process", example_service.NODE, local.images
    running = Running(
        target,
        port=port,
        fleet=local.fleet if local is not None else fleet,
        encryption=encryption_config,
        domain=domain,
        services=services,
    )
    machine_options = {"images": images, "volumes": volumes, "trusted": trusted, "egress": egress}
    running.use_machine(machine, machine_options if runtime == "process" else None)
    beside: list[Callable[[], Coroutine[None, None, None]]] = []
    if example:
        beside.append(lambda: keep_trading(target, with_service=local is not None))
    if pilot is not None:
        beside.append(lambda: keep_piloting(target, mode=pilot, desired=desired, tell=tell))
    asyncio.run(_foreground(running, example=example, beside=beside))


class Running:
    """An installation with its processes. Raises `UserError` before anything is started."""

    def __init__(
        self,
        target: Installation,
        *,
        port: int | None = None,
        fleet: Path | None = None,
        encryption: Path | None = None,
        domain: str = "",
        services: ServiceOptions | None = None,
    ) -> None:
        if domain and _DOMAIN.fullmatch(domain) is None:
            raise UserError(
                f"--domain {domain}: use a DNS name in lower case, for example gpus.example.com"
            )
        target.create()
        target.lock()
        check_keys(target.planes, sealing.load(encryption) if encryption else target.sealing())
        if encryption is not None:
            target.write_encryption(encryption)
        if not os.environ.get("BIDPLANE_LEDGER"):
            Ledger.open(target.ledger, mark=target.folder / FILE).close()  # refused here if it lost
        if fleet is not None:
            fleets.load(fleet)
            shutil.copyfile(fleet, target.fleet)
        elif not target.fleet.exists():
            shutil.copyfile(DEFAULT_FLEET, target.fleet)
        self.fleet = fleets.load(target.fleet)
        self.installation = target
        self.monitor = Monitor(target, say=_say)
        self.supervisor = Supervisor(on_change=self.monitor.changed)
        self.monitor.statuses = lambda: self.supervisor.statuses
        server = bind(_LOOPBACK, _first_port(target) if port is None else port)
        self._services = ServiceListeners(
            services or ServiceOptions(), target, server_port=_port(server), any_port=port == 0
        )
        self._listeners: dict[str, tuple[socket.socket, ...]] = {
            "server": (server,),
            # The next port, if free: a Prometheus is configured with it once.
            "exchange": (bind_near(_LOOPBACK, _exchange_ports(target, _port(server), port)),),
            **self._services.by_name,
            "node": (bind(_LOOPBACK, 0),),
        }
        self.domain = domain or _domain(target)
        target.certificates(hosts=HOSTS, now=SystemClock().now())
        target.tokens()
        self.url = f"https://{_LOOPBACK}:{_port(server)}"
        self.exchange_url = f"https://{_LOOPBACK}:{_port(self._listeners['exchange'][0])}"

    @property
    def services_url(self) -> str:
        return self._services.url

    @property
    def services_at(self) -> str:
        tls = self._services.tls_url
        return self._services.url + (f" and {tls}" if tls else "")

    def use_machine(self, name: str, options: dict[str, Any] | None) -> None:
        """
        Run one node of the fleet on this machine, with real processes; with None simulate all
        nodes.
        """
        if options is None:
            self.installation.write_machine(None)
            return
        names = [node.name for node in self.fleet.nodes]
        chosen = name or names[0]
        if chosen not in names:
            raise UserError(f"the fleet has no node {chosen!r}: it has {', '.join(names)}")
        if options["egress"]:
            choose("auto", egress=True)  # raises here if it is not possible
        files = {key: str(options[key].resolve()) for key in ("images", "volumes") if options[key]}
        state = str(self._machine_state(chosen))
        self.installation.write_machine(
            {
                "name": chosen,
                "trusted": options["trusted"],
                "egress": options["egress"],
                "state": state,
                **files,
            }
        )
        self._listeners["machine"] = (bind(_LOOPBACK, 0),)

    def _machine_state(self, name: str) -> Path:
        """
        The node's state folder: outside the private data folder for root, whose pods run as users
        of their own.
        """
        folder = self.installation.folder.resolve()
        if os.geteuid() != 0:
            return folder / "machine"
        digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
        return Path("/var/lib/bidplane/node") / f"{name}-{digest}"

    async def start(self) -> None:
        """Start the installation's processes, and wait until each of them answers."""
        try:
            host_uid = self.installation.address().host_uid
        except UserError:
            host_uid = ""
        self.installation.write_address(
            Address(
                url=self.url,
                exchange_url=self.exchange_url,
                host_uid=host_uid,
                activator_url=self._services.url,
                activator_tls_url=self._services.tls_url,
                activator_address=self._services.address,
                tls_folder=str(self._services.certificates or ""),
                activators=len(self._services.by_name),
                domain=self.domain,
            )
        )
        # The server first: the others connect to it, with the identity it writes.
        simulated = len(self.fleet.nodes) - ("machine" in self._listeners)
        for name in self._listeners:
            self.supervisor.start(self._program(name))
            nodes = len(self.fleet.nodes) if name == "machine" else simulated
            await wait_ready(self.installation, name, nodes)
        with suppress(TimeoutError):  # `bidplane status` then shows what is not ready
            async with asyncio.timeout(_READY_SECONDS):
                await self.supervisor.wait_ready()

    async def stop(self) -> None:
        await self.supervisor.stop()
        self.monitor.close()
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.close()

    def _program(self, name: str) -> SupervisedProgram:
        """The supervised process of that name."""
        descriptors = [listener.fileno() for listener in self._listeners[name]]
        kind = FIRST if name in self._services.by_name else name
        return SupervisedProgram(
            name=name,
            command=[
                sys.executable,
                "-m",
                "bidplane",
                "process",
                kind,
                str(self.installation.folder.resolve()),
                *map(str, descriptors),
                *(["--name", name] if kind == FIRST else []),
            ],
            inherits=[*descriptors, self.installation.lock_descriptor],
            log=self.installation.logs / f"{name}.log",
            data=self.installation.folder,
            beats=True,
        )


def _first_port(target: Installation) -> int:
    """The port this installation had, so that earlier kubeconfigs keep working."""
    return target.ports()[0] or DEFAULT_PORT


def _exchange_ports(target: Installation, server: int, requested: int | None) -> list[int]:
    """The ports to try for the exchange."""
    previous = target.ports()[1]
    return [previous] if previous else [] if requested == 0 else [server + 1]


def _domain(target: Installation) -> str:
    """The domain that this installation had."""
    try:
        return target.address().domain
    except UserError:
        return DEFAULT_DOMAIN


def _say(message: str) -> None:
    now = datetime.now().astimezone().strftime("%H:%M:%S")
    console.print(f"{now} {message}", markup=False, soft_wrap=True)


def _port(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


async def _foreground(
    running: Running, *, example: bool, beside: Sequence[Callable[[], Coroutine[None, None, None]]]
) -> None:
    """Start, greet, and run until a signal; with it, what runs `beside` the installation."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop.set)
    starting = asyncio.create_task(running.start())
    watching = asyncio.create_task(running.monitor.watch_disk())
    stopping = asyncio.create_task(stop.wait())
    tasks: list[asyncio.Task[None]] = []
    try:
        with console.status("starting server, exchange, activator and node …"):
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _greet(running, example=example)
            tasks = [asyncio.create_task(work()) for work in beside]
        await stopping
    finally:
        starting.cancel()
        watching.cancel()
        for task in tasks:
            task.cancel()
        await running.stop()
    console.print("stopped; `bidplane up` continues from here")


def _nodes(running: Running) -> str:
    real, count = running.installation.machine(), len(running.fleet.nodes)
    if real is None:
        return f"{count} simulated nodes"
    return f"{count - 1} simulated nodes, and {real['name']}: this machine"


def _greet(running: Running, *, example: bool) -> None:
    machine = running.installation.machine()
    with_service = example and machine is not None and machine["name"] == example_service.NODE
    name = command_name()
    fleet = running.fleet
    gpus = sum(len(domain) for node in fleet.nodes for domain in node.link_domains())
    names = [agent.name for agent in AGENTS]
    data = f" --data {running.installation.folder}" if "--data" in sys.argv else ""
    host = f"{example_service.NAME}.{example_service.AGENT}.{running.domain}"
    wakes = f"  curl {running.services_url.replace(_LOOPBACK, host)}/   # wakes a service\n"
    console.print(
        f"Bidplane is up at [bold]{running.url}[/bold]\n"
        f"  fleet  {_nodes(running)}, {gpus} GPUs\n"
        f"  data   {running.installation.folder}\n"
        f"  services at {running.services_at}, as NAME.AGENT.{running.domain}\n"
        + (f"  agents {', '.join(names)} (already trading)\n" if example else "")
        + "\n"
        "Try, in another terminal:\n"
        f"  {name} agent create mine --priority 1 --refill 100{data}\n"
        "  kubectl --kubeconfig mine.kubeconfig apply -f examples/pod.yaml\n"
        f"  {name} market watch{data}\n" + (wakes if with_service else "") + "\n"
        "Ctrl-C stops it.",
        soft_wrap=True,
    )
