"""`bidplane node`: this machine as a node, where there is no kubelet."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import signal
import socket
import ssl
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
import uvloop
from cyclopts import Parameter

from bidplane import __version__
from bidplane.cli.common import Data, console, default_data, installation
from bidplane.cli.process import HOSTS
from bidplane.errors import UserError
from bidplane.kube.http import HttpClient
from bidplane.kube.kubeconfig import client_from
from bidplane.machinery.clock import SystemClock
from bidplane.node import fleet as fleets
from bidplane.node.agent import Identity
from bidplane.node.auth import Gate, InstallationGate
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.inventory import DeclaredDevices, this_machine
from bidplane.node.process import addresses, images, mounts
from bidplane.node.process.confine import Bare, Bubblewrap, Engine, Podman, find_bubblewrap
from bidplane.node.process.limits import Cgroups
from bidplane.node.process.settings import Settings
from bidplane.runtime.certificates import Certificates, ensure
from bidplane.runtime.holding import HeldByAnother, hold
from bidplane.runtime.installation import Installation
from bidplane.runtime.serve import bind
from bidplane.wire.names import subdomain_problems
from bidplane.wiring.hostclient import host_client
from bidplane.wiring.node import ProcessNode, SimulatedFleet


def node(
    *,
    name: Annotated[str, Parameter(help="The node's name; else this machine's.")] = "",
    kubeconfig: Annotated[
        Path | None, Parameter(help="Of the cluster to join; else the Bidplane in --data.")
    ] = None,
    context: Annotated[str, Parameter(help="Which of its contexts.")] = "",
    runtime: Annotated[
        Literal["process", "podman", "simulated"],
        Parameter(
            help="Processes of this machine, images in Podman, or a fleet that is not there."
        ),
    ] = "process",
    fleet: Annotated[
        Path | None,
        Parameter(help="A fleet file that declares this node's GPUs; or all that are simulated."),
    ] = None,
    images: Annotated[Path | None, Parameter(help="What an image's name stands for here.")] = None,
    volumes: Annotated[Path | None, Parameter(help="Which directories pods may use.")] = None,
    trusted: Annotated[
        list[str] | None,
        Parameter(help="Agents or namespaces to trust; needed where there is no bubblewrap."),
    ] = None,
    network: Annotated[
        Literal["auto", "namespace", "loopback"], Parameter(help="How pods get an address.")
    ] = "auto",
    egress: Annotated[
        bool,
        Parameter(
            negative="", help="Pods with networks of their own reach beyond this machine (NAT)."
        ),
    ] = False,
    sandbox: Annotated[
        Literal["auto", "none"], Parameter(help="`none` runs trusted pods without bubblewrap.")
    ] = "auto",
    address: Annotated[str, Parameter(help="Where the API reaches this node.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Of its logs, exec, …; 0 takes any.")] = 0,
    client_ca: Annotated[
        Path | None, Parameter(help="Who signed the API server's certificate for nodes.")
    ] = None,
    tls_cert: Annotated[
        Path | None,
        Parameter(help="What it shows the API server; else one it makes, with an own authority."),
    ] = None,
    tls_key: Annotated[Path | None, Parameter(help="The key of --tls-cert.")] = None,
    state: Annotated[
        Path | None, Parameter(help="Where it keeps its pods; needed after a restart.")
    ] = None,
    data: Data = None,
) -> None:
    """
    Be a node: run the pods that are bound to it, in the foreground.

    Ctrl-C stops the node and leaves its pods running; the next start finds them again.

    Examples:
        bidplane node --images images.yaml
        bidplane node --kubeconfig admin.kubeconfig --name box --images images.yaml
        bidplane node --fleet fleet.yaml --name h100-a --volumes volumes.yaml
        bidplane node --fleet fleet.yaml --runtime simulated --kubeconfig admin.kubeconfig
    """
    chosen = name or re.sub(r"[^a-z0-9.-]", "-", platform.node().lower()) or "node"
    for problem in subdomain_problems(chosen):
        raise UserError(f"{chosen!r} cannot be a node's name: {problem}; choose one with --name")
    client = (
        client_from(kubeconfig, context=context)
        if kubeconfig is not None
        else host_client(installation(data), user="bidplane-node", clock=SystemClock())
    )
    where = None if kubeconfig else installation(data)
    pair = _pair(tls_cert, tls_key)
    if runtime == "simulated":
        declared_fleet = _simulated(fleet, name)
        kept = _state(state, chosen, passable=False)
        kubelet = _kubelet(chosen, kept, address, port, where, client_ca, pair)
        with _alone_in(kept):
            uvloop.run(_simulate(client, declared_fleet, kubelet))
        return
    settings = Settings(
        node=chosen,
        state=_state(state, chosen),
        engine=_engine(runtime, sandbox),
        network=addresses.choose(network, egress=egress),
        cgroups=Cgroups(f"bidplane-{chosen}"),
        host_ip=address,
        images=_images(images),
        volumes=mounts.load(volumes) if volumes is not None else mounts.Declared(),
        trusted=trusted or (),
        api=_api(client),
        server=_server(client),
    )
    kubelet = _kubelet(chosen, settings.state, address, port, where, client_ca, pair)
    declared = _declared(fleet, chosen)
    with _alone_in(settings.state):
        uvloop.run(_foreground(client, settings, declared, runtime, kubelet))


class Kubelet(NamedTuple):
    """How the node is asked: for logs, exec, port-forward."""

    listener: socket.socket
    certificates: Certificates
    client_ca: Path | None
    gate: Gate | None  # None: whoever the API server knows


def _kubelet(
    node: str,
    state: Path,
    address: str,
    port: int,
    where: Installation | None,
    client_ca: Path | None,
    pair: tuple[Path, Path] | None,
) -> Kubelet:
    clock = SystemClock()
    listener = bind(address, port)
    if where is not None:
        certificates = where.certificates(hosts=HOSTS, now=clock.now())
        return Kubelet(listener, certificates, None, InstallationGate(where.tokens(), clock=clock))
    folder = state / "certificates"
    folder.mkdir(exist_ok=True, mode=0o700)
    certificates = ensure(folder, hosts=[address, node], now=clock.now())
    if pair is not None:
        certificates = Certificates(certificates.ca, *pair)
    return Kubelet(listener, certificates, client_ca, None)


def _pair(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UserError("--tls-cert and --tls-key belong together: give both, or neither")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"{certificate} and {key} are not a certificate and its key: {error}"
        ) from error
    return certificate, key


def _engine(runtime: str, sandbox: str) -> Engine:
    if runtime == "podman":
        found = shutil.which("podman")
        if found is None:
            raise UserError(
                "there is no podman on this machine: install it, or leave out --runtime"
            )
        return Podman(found)
    bubblewrap = find_bubblewrap() if sandbox == "auto" else None
    return Bubblewrap(bubblewrap) if bubblewrap is not None else Bare()


def _images(path: Path | None) -> images.Images:
    return images.load(path) if path is not None else images.Images()


def _declared(fleet: Path | None, name: str) -> NodeDeclaration | None:
    if fleet is None:
        return None
    declared = fleets.load(fleet).nodes
    for one in declared:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in declared)
    raise UserError(f"the fleet file {fleet} declares no node {name!r}; it has {known}")


def _simulated(path: Path | None, name: str) -> Fleet:
    """The fleet of a file, or with a name that one node of it."""
    if path is None:
        raise UserError("--runtime simulated needs --fleet FILE: which nodes there are to be")
    fleet = fleets.load(path)
    chosen = _declared(path, name) if name else None
    return fleet if chosen is None else msgspec.structs.replace(fleet, nodes=[chosen])


async def _simulate(client: HttpClient, fleet: Fleet, kubelet: Kubelet) -> None:
    nodes = SimulatedFleet(client, fleet, kubelet.listener, alone=False, clock=SystemClock())

    async def greet() -> None:
        names = [node.name for node in fleet.nodes]
        with console.status(f"registering {len(names)} nodes …"):
            await nodes.nodes.registered.wait()
        shown = ", ".join(names[:4]) + (f", … and {len(names) - 4} more" if names[4:] else "")
        console.print(
            f"{len(names)} simulated node{'s are' if names[1:] else ' is'} ready: {shown}\n\n"
            "Ctrl-C stops them; what their pods did meanwhile is worked out at the next start.",
            soft_wrap=True,
        )

    working = asyncio.create_task(
        nodes.run(kubelet.certificates, client_ca=kubelet.client_ca, gate=kubelet.gate)
    )
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, working.cancel)
    greeting = asyncio.create_task(greet())
    try:
        await working
    except asyncio.CancelledError:
        console.print("stopped")
    finally:
        greeting.cancel()
        await client.close()


def _api(client: HttpClient) -> tuple[str, str] | None:
    """For programs in pods: where the API is, if a host and a port can say it."""
    found = re.fullmatch(r"https://([^/:]+)(?::(\d+))?", client.url)
    return (found[1], found[2] or "443") if found else None


def _server(client: HttpClient) -> tuple[str, int] | None:
    address = urlsplit(client.url)
    return (address.hostname, address.port or 443) if address.hostname else None


def _state(given: Path | None, name: str, *, passable: bool = True) -> Path:
    root = given
    if root is None:
        own = Path("/var/lib/bidplane") if os.geteuid() == 0 else default_data()
        root = own / "node" / name
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make {root}: {error.strerror}; choose another with --state"
        ) from error
    if os.geteuid() == 0 and passable:
        for folder in root.resolve().parents:
            if not folder.stat().st_mode & 0o001:
                raise UserError(
                    f"pods have users of their own, and these may not pass through {folder}:"
                    " choose another place with --state"
                )
    return root.resolve()


def _alone_in(state: Path) -> IO[str]:
    """Two agents in one folder would each take the other's pods for their own."""
    try:
        return hold(state)
    except HeldByAnother as holder:
        raise UserError(
            f"a node already runs with its state in {state} ({holder}); stop that one, or choose"
            " another place with --state"
        ) from None


async def _foreground(
    client: HttpClient,
    settings: Settings,
    declared: NodeDeclaration | None,
    runtime: str,
    kubelet: Kubelet,
) -> None:
    clock = SystemClock()
    sandbox = settings.engine.kind if settings.engine.sandboxed else ""
    identity = Identity(
        name=settings.node,
        address=settings.host_ip,
        port=kubelet.listener.getsockname()[1],
        runtime=runtime,
        sandbox=sandbox,
        network=settings.network.kind,
        disk_bytes=shutil.disk_usage(settings.state).total,
        version=__version__,
        **_shown(declared),
    )
    inventory = DeclaredDevices(declared) if declared else this_machine(settings.node)
    node = ProcessNode(client, settings, identity, inventory, tokens=client, clock=clock)
    working = asyncio.create_task(node.run(*kubelet))
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, working.cancel)
    greeting = asyncio.create_task(_greet(node, settings, sandbox))
    try:
        await working
    except asyncio.CancelledError:
        console.print("stopped; its pods run on, and the next start finds them")
    finally:
        greeting.cancel()
        settings.cgroups.close()  # if nothing runs in them any more
        await client.close()


def _shown(declared: NodeDeclaration | None) -> dict[str, Any]:
    """What the market reads from a node; and it is no longer simulated, if it ever was."""
    if declared is None:
        return {}
    metadata = fleets.node_object(declared)["metadata"]
    return {
        "labels": {**metadata["labels"], fleets.SIMULATED: None},
        "annotations": metadata["annotations"],
    }


async def _greet(node: ProcessNode, settings: Settings, sandbox: str) -> None:
    with console.status(f"registering node {settings.node} …"):
        await node.agent.registered.wait()
    limits = ", ".join(settings.cgroups.controllers)
    console.print(
        f"node [bold]{settings.node}[/bold] is ready\n"
        f"  sandbox  {sandbox or 'none: only trusted pods are run'}\n"
        f"  network  {settings.network.kind}\n"
        f"  limits   {f'cgroups ({limits})' if limits else 'rlimits: no cgroup can be written'}\n"
        f"  images   {', '.join(settings.images.images) or 'none mapped'}\n"
        f"  state    {settings.state}\n\n"
        "Ctrl-C stops the node, not its pods.",
        soft_wrap=True,
    )
