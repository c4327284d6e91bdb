"""
The server: planes, the controllers that work in them, and the public address.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from pathlib import Path

import msgspec

from bidplane import __version__
from bidplane.core.activation.warmpath import ActivatorAddress
from bidplane.core.bidding.admission import admission, advise
from bidplane.core.gate.admission import with_policies
from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.gate.service import Gate
from bidplane.http.server import descriptors
from bidplane.http.server.serve import serve
from bidplane.ledger.audit.trail import AuditTrail
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.node.fleet import Fleet
from bidplane.node.offering import offer
from bidplane.plane import Planes
from bidplane.plane.hostpolicy import prepare_gate
from bidplane.plane.life import PlaneLife, snapshots_in
from bidplane.plane.metrics import PlaneMetrics
from bidplane.runtime.identity.certificates import Certificates
from bidplane.runtime.identity.credentials import HOST_PLANE
from bidplane.runtime.installation import Address, Installation
from bidplane.runtime.metrics import ProcessMetrics
from bidplane.runtime.supervision import running
from bidplane.runtime.supervision.health import Health
from bidplane.runtime.supervision.heartbeat import beat
from bidplane.runtime.supervision.probes import ProbedApp
from bidplane.storage.postgres import is_dsn
from bidplane.web.app import WebApp
from bidplane.web.credentials import CredentialsApp
from bidplane.web.decisions import DecisionsApp
from bidplane.web.exchange_proxy import ExchangeProxy
from bidplane.web.planes import PlanesApp
from bidplane.web.podstreams import NodeStreams
from bidplane.wiring.controllers import Controllers


async def prepare_host(planes: Planes, fleet: Fleet | None) -> str:
    """Create the host plane, and a pool for every product of the fleet that has none."""
    uid = await planes.create(HOST_PLANE)
    if fleet is not None:
        await offer(planes.client(HOST_PLANE), fleet)
    return uid


def audit_trail(installation: Installation) -> AuditTrail:
    """Open the audit: in PostgreSQL, if the operator names one; else in the ledger's file."""
    dsn = os.environ.get("BIDPLANE_LEDGER", "")
    return AuditTrail.open(dsn if is_dsn(dsn) else Path(dsn) if dsn else installation.ledger)


async def run_server(
    installation: Installation,
    listener: socket.socket,
    certificates: Certificates,
    address: Address,
    fleet: Fleet | None,
    *,
    clock: Clock | None = None,
) -> None:
    """Run the server process until cancelled."""
    clock = clock or SystemClock()
    tokens = installation.tokens()

    def owner_token() -> str:
        return installation.owner_token(user="bidplane-server", now=clock.now())

    streams = NodeStreams(
        lambda: planes.client(HOST_PLANE), token=owner_token, ca_file=installation.ca_file
    )
    signer = installation.signer()
    planes = Planes(
        installation.planes,
        clock=clock,
        tokens=tokens,
        crds=crds_for,
        admit=with_policies(
            admission(lambda plane: controllers.agent(plane) if plane != HOST_PLANE else None)
        ),
        advise=advise,
        pod_streams=streams,
        ca=certificates.ca.read_text(),
        signer=signer,
        sealing=installation.sealing(),
    )
    gate = planes.gate = Gate(
        planes.client(HOST_PLANE),
        lambda: audit_trail(installation),
        clock=clock,
        new_id=lambda: uuid.uuid4().hex,
        snapshot=snapshots_in(installation.folder / "snapshots", planes),
    )
    proxy = ExchangeProxy(address.exchange_url, ca_file=installation.ca_file)
    credentials = CredentialsApp(
        tokens,
        plane_uid=planes.uid,
        url=address.url,
        ca=certificates.ca.read_bytes(),
        clock=clock,
        signer=signer,
        hang_up=planes.sleep,
    )
    driver = EmbeddedDriver(planes, address.url)
    try:
        uid = await prepare_host(planes, fleet)
        await prepare_gate(planes.plane(HOST_PLANE), planes.client(HOST_PLANE))
        installation.write_address(msgspec.structs.replace(address, host_uid=uid))
        controllers = Controllers(
            planes.client(HOST_PLANE),
            driver,
            clock=clock,
            own_host=True,
            gate=gate,
            domain=address.domain,
            activator=ActivatorAddress(*address.activator_address)
            if address.activator_address
            else None,
        )
        assert controllers.proposals is not None, "there is a gate"
        # Two files for each plane, and as many for connections.
        open_limit = max(16, min(4096, descriptors.open_files() // 4))
        life = PlaneLife(planes, controllers, clock=clock, open_limit=open_limit)
        app = WebApp(
            planes=planes,
            exchange=proxy,
            credentials=credentials,
            life=PlanesApp(life, tokens, clock=clock),
            decisions=DecisionsApp(
                gate,
                tokens,
                host_uid=lambda: planes.uid(HOST_PLANE),
                clock=clock,
                decided=controllers.proposals.add,
            ),
            plane_of=lambda token: tokens.plane_of_account(token, now=clock.now()),
        )
        health = Health(notes=lambda: [f"quarantined: {w}" for w in running.quarantine.refused()])
        health.add(
            "controllers", lambda: "" if controllers.started.is_set() else "they are starting"
        )
        metrics = ProcessMetrics(version=__version__)
        metrics.add(PlaneMetrics(planes))
        probed = ProbedApp(
            app,
            health=health,
            metrics=metrics,
            tokens=tokens,
            now=clock.now,
            other_checks=proxy.readiness,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(beat(health))
            group.create_task(running.watch(installation.folder, "server"))
            group.create_task(metrics.sample())
            group.create_task(serve(probed, listener, certificates))
            group.create_task(controllers.run())
            group.create_task(life.run())
    finally:
        await planes.close()
        gate.close()
        await proxy.close()
        await streams.close()
