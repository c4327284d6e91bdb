"""The activator: requests for agents' services, on an address of its own."""

from __future__ import annotations

import asyncio
import datetime
import socket
from pathlib import Path

import structlog

from bidplane.activator.activator import Activator
from bidplane.activator.applications import Applications
from bidplane.activator.gpus import PodGpus
from bidplane.activator.members import Membership
from bidplane.http.proxy.certificates import CertificateFolder
from bidplane.http.proxy.pool import BackendPool
from bidplane.http.proxy.server import ProxyServer, Site
from bidplane.kube.exec import PodCommands
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.runtime.installation import Installation
from bidplane.runtime.supervision.health import Health
from bidplane.runtime.supervision.heartbeat import beat
from bidplane.telemetry.pages import NodePages
from bidplane.wiring.hostclient import host_client

_CERTIFICATES_SECONDS = 5.0  # between two looks for renewed ones

log = structlog.get_logger(__name__)


async def run_activator(
    installation: Installation,
    listener: socket.socket,
    tls_listener: socket.socket | None = None,
    *,
    name: str,
    clock: Clock | None = None,
) -> None:
    """Run an activator process until cancelled; `name` is its own among several."""
    clock = clock or SystemClock()
    address = installation.address()
    client = host_client(installation, user=f"bidplane-{name}", clock=clock)
    pool = BackendPool()
    group: Membership | None = None
    if address.activators > 1:
        group = Membership(client, name, address.activators, clock=clock)

    def token() -> str:
        return installation.owner_token(user=f"bidplane-{name}", now=clock.now())

    pages = NodePages(token=token, ca_file=installation.ca_file)
    applications = Applications(
        PodCommands(client.url, token=token, ca_file=installation.ca_file),
        PodGpus(client, pages),
    )
    activator = Activator(client, pool, clock=clock, group=group, applications=applications)
    server = ProxyServer(Site(activator.dispatch), pool)
    certificates = CertificateFolder(Path(address.tls_folder)) if tls_listener is not None else None

    def notes() -> list[str]:
        now = datetime.datetime.fromtimestamp(clock.now(), datetime.UTC)
        return certificates.notes(now) if certificates is not None else []

    health = Health(notes)
    health.add("endpoints", lambda: "" if activator.is_synced else "they are not known yet")
    try:
        await server.start(listener)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beat(health))
            tasks.create_task(activator.run())
            if group is not None:
                group.changed = activator.tick
                tasks.create_task(group.run())
            if certificates is not None and tls_listener is not None:
                await server.start(tls_listener, certificates.context)
                tasks.create_task(_renew(certificates, clock))
    finally:
        await server.close()
        await pages.close()
        await client.close()


async def _renew(certificates: CertificateFolder, clock: Clock) -> None:
    """Use certificates as they are renewed, without a restart."""
    while True:
        await clock.sleep(_CERTIFICATES_SECONDS)
        try:
            changed = await asyncio.to_thread(certificates.read)
        except OSError as error:
            log.error("cannot read certificates", error=str(error))
            continue
        if changed:
            log.info("certificates read", hosts=certificates.hosts, problems=certificates.problems)
