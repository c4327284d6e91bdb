"""`bidplane node`: this machine as a node, without a kubelet."""

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
from typing import IO, Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
import uvloop
from cyclopts import Parameter

from bidplane import __version__
from bidplane.api.objects import annotations_of, labels_of
from bidplane.cli.common import Data, console, default_data, installation
from bidplane.cli.operate.process import HOSTS
from bidplane.errors import UserError
from bidplane.http.server.serve import bind
from bidplane.kube.http import HttpClient
from bidplane.kube.kubeconfig import client_from
from bidplane.machinery.clock import SystemClock
from bidplane.node import fleet as fleets
from bidplane.node.agent import NodeIdentity
from bidplane.node.auth import InstallationGate, NodeAuthorizer
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.inventory import DeclaredDevices, this_machine
from bidplane.node.process.container import images
from bidplane.node.process.network import addresses
from bidplane.node.process.sandbox.confinement import (
    Bare,
    Bubblewrap,
    ContainerEngine,
    Podman,
    find_bubblewrap,
)
from bidplane.node.process.sandbox.limits import Cgroups
from bidplane.node.process.settings import ProcessSettings
from bidplane.node.process.volumes import mounts
from bidplane.runtime.folderlock import HeldByAnother, hold
from bidplane.runtime.identity.certificates import Certificates, ensure
from bidplane.runtime.installation import Installation
from bidplane.runtime.logs import configure_logs
from bidplane.runtime.supervision.health import Health
from bidplane.runtime.supervision.heartbeat import beat
from bidplane.wire.names import subdomain_problems
from bidplane.wiring.hostclient import host_client
from bidplane.wiring.node import ProcessNode, SimulatedFleet


def node(
    *,
    name: Annotated[str, Parameter(help="The node's name; else this machine's.")] = "",
    kubeconfig: Annotated[
        Path | None,
        Parameter(help="The kubeconfig of the cluster to join; else the Bidplane in --data."),
    ] = None,
    context: Annotated[str, Parameter(help="The kubeconfig's context; else its current one.")] = "",
    runtime: Annotated[
        Literal["process", "podman", "simulated"],
        Parameter(help="Processes of this machine, images in Podman, or a simulated fleet."),
    ] = "process",
    fleet: Annotated[
        Path | None,
        Parameter(help="A fleet file that declares this node's GPUs, or all simulated nodes."),
    ] = None,
    images: Annotated[
        Path | None, Parameter(help="A file that maps image names to programs of this machine.")
    ] = None,
    volumes: Annotated[
        Path | None, Parameter(help="A file that lists the directories that pods may use.")
    ] = None,
    trusted: Annotated[
        list[str] | None,
        Parameter(help="Agents or namespaces to trust; needed without bubblewrap."),
    ] = None,
    network: Annotated[
        Literal["auto", "namespace", "loopback"], Parameter(help="How pods get an address.")
    ] = "auto",
    egress: Annotated[
        bool,
        Parameter(negative="", help="Let pods with their own network reach other machines (NAT)."),
    ] = False,
    sandbox: Annotated[
        Literal["auto", "none"], Parameter(help="`none` runs trusted pods without bubblewrap.")
    ] = "auto",
    address: Annotated[str, Parameter(help="The address of this node for the API.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="The port for logs, exec, …; 0 takes any.")] = 0,
    client_ca: Annotated[
        Path | None, Parameter(help="The authority of the API server's client certificate.")
    ] = None,
    tls_cert: Annotated[
        Path | None,
        Parameter(help="The node's serving certificate; else one of its own authority."),
    ] = None,
    tls_key: Annotated[Path | None, Parameter(help="The key of --tls-cert.")] = None,
    state: Annotated[
        Path | None, Parameter(help="The folder of its pods' state, read after a restart.")
    ] = None,
    data: Data = None,
) -> None:
    """
    Run this machine as a node, in the foreground.

    Ctrl-C stops the node and leaves its pods running; the next start takes them over.

    For example:
        bidplane node --images images.yaml
        bidplane node --kubeconfig admin.kubeconfig --name box --images images.yaml
        bidplane node --fleet fleet.yaml --name h100-a --volumes volumes.yaml
        bidplane node --fleet fleet.yaml --runtime simulated --kubeconfig admin.kubeconfig
    """
    configure_logs()
    node_name = name or re.sub(r"[^a-z0-9.-]", "-", platform.node().lower()) or "node"
    for problem in subdomain_problems(node_name):
        raise UserError(f"{node_name!r} cannot be a node's name: {problem}; choose one with --name")
    client = (
        client_from(kubeconfig, context=context)
        if kubeconfig is not None
        else host_client(installation(data), user="bidplane-node", clock=SystemClock())
    )
    target = None if kubeconfig else installation(data)
    tls_files = _tls_files(tls_cert, tls_key)
    if runtime == "simulated":
        declared_fleet = _simulated_fleet(fleet, name)
        state_folder = _state(state, node_name, passable=False)
        kubelet = _kubelet(node_name, state_folder, address, port, target, client_ca, tls_files)
        with _lock_state(state_folder):
            uvloop.run(_simulate(client, declared_fleet, kubelet))
        return
    settings = ProcessSettings(
        node=node_name,
        state=_state(state, node_name),
        engine=_engine(runtime, sandbox),
        network=addresses.choose(network, egress=egress),
        cgroups=Cgroups(f"bidplane-{node_name}"),
        host_ip=address,
        images=_images(images),
        volumes=mounts.load(volumes) if volumes is not None else mounts.Declared(),
        trusted=trusted or (),
        api=_api(client),
        server=_server(client),
    )
    kubelet = _kubelet(node_name, settings.state, address, port, target, client_ca, tls_files)
    declared = _declared_node(fleet, node_name)
    with _lock_state(settings.state):
        uvloop.run(_foreground(client, settings, declared, runtime, kubelet))


class Kubelet(NamedTuple):
    """The node's server for logs, exec and port-forward."""

    listener: socket.socket
    certificates: Certificates
    client_ca: Path | None
    gate: NodeAuthorizer | None  # None: the API server decides


def _kubelet(
    node: str,
    state: Path,
    address: str,
    port: int,
    target: Installation | None,
    client_ca: Path | None,
    tls_files: tuple[Path, Path] | None,
) -> Kubelet:
    """The node's server: its socket, certificates and gate."""
    clock = SystemClock()
    listener = bind(address, port)
    if target is not None:
        certificates = target.certificates(hosts=HOSTS, now=clock.now())
        return Kubelet(listener, certificates, None, InstallationGate(target.tokens(), clock=clock))
    folder = state / "certificates"
    folder.mkdir(exist_ok=True, mode=0o700)
    certificates = ensure(folder, hosts=[address, node], now=clock.now())
    if tls_files is not None:
        certificates = Certificates(certificates.ca, *tls_files)
    return Kubelet(listener, certificates, client_ca, None)


def _tls_files(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """The certificate and key files, checked; None without them."""
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


def _engine(runtime: str, sandbox: str) -> ContainerEngine:
    """The engine that runs containers."""
    if runtime == "podman":
        podman = shutil.which("podman")
        if podman is None:
            raise UserError(
                "there is no podman on this machine: install it, or leave out --runtime"
            )
        return Podman(podman)
    bubblewrap = find_bubblewrap() if sandbox == "auto" else None
    return Bubblewrap(bubblewrap) if bubblewrap is not None else Bare()


def _images(path: Path | None) -> images.Images:
    return images.load(path) if path is not None else images.Images()


def _declared_node(fleet: Path | None, name: str) -> NodeDeclaration | None:
    """The node of that name in the fleet file."""
    if fleet is None:
        return None
    declared = fleets.load(fleet).nodes
    for declaration in declared:
        if declaration.name == name:
            return declaration
    names = ", ".join(declaration.name for declaration in declared)
    raise UserError(f"the fleet file {fleet} declares no node {name!r}; it has {names}")


def _simulated_fleet(path: Path | None, name: str) -> Fleet:
    """The fleet of a file; with a name, only that node of it."""
    if path is None:
        raise UserError("--runtime simulated needs --fleet FILE, which declares the nodes")
    fleet = fleets.load(path)
    chosen = _declared_node(path, name) if name else None
    return fleet if chosen is None else msgspec.structs.replace(fleet, nodes=[chosen])


async def _simulate(client: HttpClient, fleet: Fleet, kubelet: Kubelet) -> None:
    """Run simulated nodes until a signal."""
    nodes = SimulatedFleet(client, fleet, kubelet.listener, alone=False, clock=SystemClock())

    async def greet() -> None:
        names = [node.name for node in fleet.nodes]
        with console.status(f"registering {len(names)} nodes …"):
            await nodes.nodes.registered.wait()
        listed = ", ".join(names[:4]) + (f", … and {len(names) - 4} more" if names[4:] else "")
        console.print(
            f"{len(names)} simulated node{'s are' if names[1:] else ' is'} ready: {listed}\n\n"
            "Ctrl-C stops them; the next start computes what their pods did meanwhile.",
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
    """The API's host and port for programs in pods; None if its URL has a path."""
    match = re.fullmatch(r"https://([^/:]+)(?::(\d+))?", client.url)
    return (match[1], match[2] or "443") if match else None


def _server(client: HttpClient) -> tuple[str, int] | None:
    """The API's host and port, for the network's rules."""
    address = urlsplit(client.url)
    return (address.hostname, address.port or 443) if address.hostname else None


def _state(chosen: Path | None, name: str, *, passable: bool = True) -> Path:
    """Create and return the state folder; pods must be able to enter it if `passable`."""
    state_folder = chosen
    if state_folder is None:
        base = Path("/var/lib/bidplane") if os.geteuid() == 0 else default_data()
        state_folder = base / "node" / name
    try:
        state_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot create {state_folder}: {error.strerror}; choose another with --state"
        ) from error
    if os.geteuid() == 0 and passable:
        for folder in state_folder.resolve().parents:
            if not folder.stat().st_mode & 0o001:
                raise UserError(
                    f"pods run as users of their own, which cannot enter {folder}:"
                    " choose another folder with --state"
                )
    return state_folder.resolve()


def _lock_state(state: Path) -> IO[str]:
    """Lock the state folder: two agents in one folder would each take over the other's pods."""
    try:
        return hold(state)
    except HeldByAnother as holder:
        raise UserError(
            f"a node already runs with its state in {state} ({holder}); stop that one, or choose"
            " another folder with --state"
        ) from None


async def _foreground(
    client: HttpClient,
    settings: ProcessSettings,
    declared: NodeDeclaration | None,
    runtime: str,
    kubelet: Kubelet,
) -> None:
    """Run the node until a signal."""
    clock = SystemClock()
    sandbox = settings.engine.kind if settings.engine.sandboxed else ""
    node_object = fleets.node_object(declared) if declared else None
    identity = NodeIdentity(
        name=settings.node,
        address=settings.host_ip,
        port=kubelet.listener.getsockname()[1],
        runtime=runtime,
        sandbox=sandbox,
        network=settings.network.kind,
        disk_bytes=shutil.disk_usage(settings.state).total,
        version=__version__,
        # What the market reads; the label of a simulated node is removed.
        labels={**labels_of(node_object), fleets.SIMULATED: None} if node_object else {},
        annotations=annotations_of(node_object) if node_object else {},
    )
    inventory = DeclaredDevices(declared) if declared else this_machine(settings.node)
    node = ProcessNode(client, settings, identity, inventory, tokens=client, clock=clock)
    working = asyncio.create_task(node.run(*kubelet))
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, working.cancel)
    greeting = asyncio.create_task(_greet(node, settings, sandbox))
    health = Health()
    registered = node.agent.registered
    health.add("node", lambda: "" if registered.is_set() else "it is being registered")
    beating = asyncio.create_task(beat(health))
    try:
        await working
    except asyncio.CancelledError:
        console.print("stopped; its pods run on, and the next start takes them over")
    finally:
        greeting.cancel()
        beating.cancel()
        settings.cgroups.close()  # removed only if no process is left in them
        await client.close()


async def _greet(node: ProcessNode, settings: ProcessSettings, sandbox: str) -> None:
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
