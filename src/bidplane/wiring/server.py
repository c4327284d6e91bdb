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

from bidplane.api.crds import all_crds, for_agents
from bidplane.api.kinds import DEVICE_CLASS, POD, POOL, Kind
from bidplane.api.labels import DEVICE_CLASS as DEVICE_CLASS_NAME
from bidplane.core import asks, hostreach
from bidplane.drivers.embedded import EmbeddedDriver
from bidplane.errors import AlreadyExists
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, SystemClock
from bidplane.node.fleet import Fleet, PoolDeclaration
from bidplane.node.inventory.slices import DRIVER
from bidplane.plane import Planes
from bidplane.plane.call import Admit
from bidplane.runtime import limits
from bidplane.runtime.certificates import Certificates
from bidplane.runtime.credentials import ACCOUNT_PREFIX, HOST_PLANE, InvalidToken, Tokens
from bidplane.runtime.installation import Address, Installation
from bidplane.runtime.serve import serve
from bidplane.web.app import WebApp
from bidplane.web.credentials import CredentialsApp
from bidplane.web.exchange_proxy import ExchangeProxy
from bidplane.web.planes import PlanesApp
from bidplane.web.podstreams import NodeStreams
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.life import PlaneLife


def admit(plane: str, operation: str, kind: Kind, new: Object, old: Object | None) -> list[str]:
    """What a plane refuses beyond Kubernetes' own rules: asks that cannot be read."""
    return [] if _asks_the_same(new, old) else asks.problems(kind, new)


def _asks_the_same(new: Object, old: Object | None) -> bool:
    """Most writes are of a status: what was let in is not asked about again."""
    return (
        old is not None
        and new.get("spec") == old.get("spec")
        and new["metadata"].get("annotations") == old["metadata"].get("annotations")
    )


def admission(agent: Callable[[str], Object | None]) -> Admit:
    """The same, and what an agent that is not trusted may not ask of the machines."""

    def admit_all(
        plane: str, operation: str, kind: Kind, new: Object, old: Object | None
    ) -> list[str]:
        if _asks_the_same(new, old):
            return []
        found = admit(plane, operation, kind, new, old)
        if kind == POD and plane != HOST_PLANE:
            known = agent(plane)
            if known is not None and not known["spec"].get("trusted"):
                # What it has it may keep: its agent may have been trusted when it was made.
                had = hostreach.problems(old) if old is not None else []
                found += [one for one in hostreach.problems(new) if one not in had]
        return found

    return admit_all


def crds_for(plane: str) -> tuple[dict[str, Any], ...]:
    return all_crds() if plane == HOST_PLANE else for_agents()


async def prepare_host(planes: Planes, fleet: Fleet | None) -> str:
    """Make the host plane, and a pool for every product of the fleet that has none."""
    uid = await planes.create(HOST_PLANE)
    if fleet is not None:
        await offer(planes.client(HOST_PLANE), fleet)
    return uid


async def offer(host: Client, fleet: Fleet) -> None:
    """Put what the fleet has up for sale; terms that are there already stay."""
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
    """The plane whose service account a token is of; None for every other token."""
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
    """The server process; returns when cancelled."""
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
        pod_streams=streams,
        ca=certificates.ca.read_text(),
        signer=signer,
    )
    proxy = ExchangeProxy(address.exchange_url, ca_file=installation.ca_file)
    credentials = CredentialsApp(
        tokens,
        plane_uid=planes.uid,
        url=address.url,
        ca=certificates.ca.read_bytes(),
        clock=clock,
        signer=signer,
    )
    driver = EmbeddedDriver(planes, address.url)
    try:
        uid = await prepare_host(planes, fleet)
        installation.write_address(
            Address(url=address.url, exchange_url=address.exchange_url, host_uid=uid)
        )
        controllers = Controllers(planes.client(HOST_PLANE), driver, clock=clock, own_host=True)
        # Two files each, and as many again for whoever connects.
        open_limit = max(16, min(4096, limits.open_files() // 4))
        life = PlaneLife(planes, controllers, clock=clock, open_limit=open_limit)
        app = WebApp(
            planes=planes,
            exchange=proxy,
            credentials=credentials,
            life=PlanesApp(life, tokens, clock=clock),
            plane_of=lambda token: plane_of_account(tokens, token, now=clock.now()),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(app, listener, certificates))
            group.create_task(controllers.run())
            group.create_task(life.run())
    finally:
        await planes.close()
        await proxy.close()
        await streams.close()
