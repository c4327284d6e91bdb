"""
The server: planes, the controllers that work in them, and the public address.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from bidplane import __version__
from bidplane.api.crds import all_crds, for_agents
from bidplane.api.kinds import (
    CRON_JOB,
    DEPLOYMENT,
    DEVICE_CLASS,
    JOB,
    POD,
    POOL,
    REPLICA_SET,
    STATEFUL_SET,
    Kind,
)
from bidplane.api.labels import DEVICE_CLASS as DEVICE_CLASS_NAME
from bidplane.core.bidding import annotations as annotations_of
from bidplane.core.bidding import asks
from bidplane.core.hosting import hostaccess
from bidplane.drivers.embedded import EmbeddedDriver
from bidplane.errors import AlreadyExists
from bidplane.http.server import descriptors
from bidplane.http.server.serve import serve
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.node.fleet import Fleet, PoolDeclaration
from bidplane.node.inventory.slices import DRIVER
from bidplane.plane import Planes
from bidplane.plane.call import Admit
from bidplane.plane.metrics import PlaneMetrics
from bidplane.runtime.identity.certificates import Certificates
from bidplane.runtime.identity.credentials import ACCOUNT_PREFIX, HOST_PLANE, InvalidToken, Tokens
from bidplane.runtime.installation import Address, Installation
from bidplane.runtime.metrics import ProcessMetrics
from bidplane.runtime.supervision import running
from bidplane.runtime.supervision.health import Health
from bidplane.runtime.supervision.heartbeat import beat
from bidplane.runtime.supervision.probes import ProbedApp
from bidplane.web.app import WebApp
from bidplane.web.credentials import CredentialsApp
from bidplane.web.exchange_proxy import ExchangeProxy
from bidplane.web.planes import PlanesApp
from bidplane.web.podstreams import NodeStreams
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.life import PlaneLife


def admit(plane: str, operation: str, kind: Kind, new: Object, old: Object | None) -> list[str]:
    """Return the problems of an object beyond Kubernetes' own rules: asks that cannot be parsed."""
    return [] if _is_same_ask(new, old) else asks.problems(kind, new)


_WITH_PODS = (POD, JOB, CRON_JOB, DEPLOYMENT, REPLICA_SET, STATEFUL_SET)


def advise(kind: Kind, obj: Object) -> list[str]:
    """Return warnings about annotations that nothing reads, on pods and on templates of pods."""
    return list(annotations_of.unread(obj)) if kind in _WITH_PODS else []


def _is_same_ask(new: Object, old: Object | None) -> bool:
    """Return whether spec and annotations are unchanged: most writes are of a status."""
    return (
        old is not None
        and new.get("spec") == old.get("spec")
        and new["metadata"].get("annotations") == old["metadata"].get("annotations")
    )


def admission(agent: Callable[[str], Object | None]) -> Admit:
    """Return an admission function: `admit`, and no access to the machines for untrusted agents."""

    def admit_all(
        plane: str, operation: str, kind: Kind, new: Object, old: Object | None
    ) -> list[str]:
        if _is_same_ask(new, old):
            return []
        problems = admit(plane, operation, kind, new, old)
        if kind == POD and plane != HOST_PLANE:
            agent_object = agent(plane)
            if agent_object is not None and not agent_object["spec"].get("trusted"):
                # Earlier problems stay allowed: the agent may have been trusted before.
                old_problems = hostaccess.problems(old) if old is not None else []
                problems += [
                    problem for problem in hostaccess.problems(new) if problem not in old_problems
                ]
        return problems

    return admit_all


def crds_for(plane: str) -> tuple[dict[str, Any], ...]:
    return all_crds() if plane == HOST_PLANE else for_agents()


async def prepare_host(planes: Planes, fleet: Fleet | None) -> str:
    """Create the host plane, and a pool for every product of the fleet that has none."""
    uid = await planes.create(HOST_PLANE)
    if fleet is not None:
        await offer(planes.client(HOST_PLANE), fleet)
    return uid


async def offer(host: KubeClient, fleet: Fleet) -> None:
    """Create a pool for each product of the fleet; existing pools stay unchanged."""
    device_class = {
        "apiVersion": DEVICE_CLASS.api_version,
        "kind": DEVICE_CLASS.kind,
        "metadata": {"name": DEVICE_CLASS_NAME},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }
    with suppress(AlreadyExists):
        await host.create(DEVICE_CLASS, device_class)
    declared = {pool.product: pool for pool in fleet.pools}
    for product in fleet.products():
        terms = declared.get(product, PoolDeclaration(product=product))
        pool = {
            "apiVersion": POOL.api_version,
            "kind": POOL.kind,
            "metadata": {"name": product.lower()},
            "spec": {
                "product": product,
                "floorPrice": terms.floor_price,
                "noticeSeconds": terms.notice_seconds,
                "restartSeconds": terms.restart_seconds,
                "chain": terms.chain,
                "divides": terms.divides.value,
                "geometry": msgspec.to_builtins(terms.geometry),
                "instantFloatPercent": terms.instant_float_percent,
                "idleSeconds": terms.idle_seconds,
            },
        }
        with suppress(AlreadyExists):
            await host.create(POOL, pool)


def plane_of_account(tokens: Tokens, token: str, *, now: float) -> str | None:
    """Return the plane of a service account's token; None for every other token."""
    try:
        identity = tokens.verify(token, now=now, accounts=True)
    except InvalidToken:
        return None
    return identity.plane if identity.user.startswith(ACCOUNT_PREFIX) else None


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
        admit=admission(lambda plane: controllers.agent(plane)),
        advise=advise,
        pod_streams=streams,
        ca=certificates.ca.read_text(),
        signer=signer,
        sealing=installation.sealing(),
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
        installation.write_address(
            Address(url=address.url, exchange_url=address.exchange_url, host_uid=uid)
        )
        controllers = Controllers(planes.client(HOST_PLANE), driver, clock=clock, own_host=True)
        # Two files for each plane, and as many for connections.
        open_limit = max(16, min(4096, descriptors.open_files() // 4))
        life = PlaneLife(planes, controllers, clock=clock, open_limit=open_limit)
        app = WebApp(
            planes=planes,
            exchange=proxy,
            credentials=credentials,
            life=PlanesApp(life, tokens, clock=clock),
            plane_of=lambda token: plane_of_account(tokens, token, now=clock.now()),
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
        await proxy.close()
        await streams.close()
