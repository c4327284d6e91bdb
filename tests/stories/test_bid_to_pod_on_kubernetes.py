"""
Path 1, bid → pod, with a real kube-apiserver as the host.

The same controllers, exchange and simulated node, given another endpoint. Agents' planes
are embedded ones. The node is simulated: there is no kubelet here, and no GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.crds import for_agents
from bidplane.api.kinds import (
    AGENT,
    DEVICE_CLASS,
    GPU_LEASE,
    NODE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
)
from bidplane.core.bidding.admission import admit
from bidplane.drivers.embedded import EmbeddedDriver
from bidplane.errors import NotFound
from bidplane.exchange.service import Exchange
from bidplane.kube.client import KubeClient
from bidplane.kube.http import HttpClient
from bidplane.ledger import Ledger, verify
from bidplane.machinery.clock import SystemClock
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.node.offering import offer
from bidplane.node.simulated import SimulatedNodes
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import Tokens
from bidplane.wiring.controllers import Controllers

from .conftest import define, pod
from .test_claims_simulated import pod as claiming_pod
from .test_nics_simulated import NIC_CLASS, gpu_and_nic, nics

pytestmark = [pytest.mark.slow, pytest.mark.kube]

# Of a product of its own: the cluster may have slices that other tests left behind.
FLEET = Fleet(
    nodes=[NodeDeclaration(name="box", product="Story-1", gpus=2)],
    pools=[
        PoolDeclaration(product="Story-1", floor_price="0.20", notice_seconds=3, restart_seconds=3)
    ],
)
WITHIN = 30.0


@asynccontextmanager
async def installed(
    cluster: Any, folder: Path, fleet: Fleet = FLEET, *, beats: bool = False
) -> AsyncIterator[tuple[KubeClient, Planes]]:
    """Bidplane on the cluster, all in this process; with `beats`, its nodes hold their Leases."""
    clock, tokens = SystemClock(), Tokens(b"test")
    clients = [
        HttpClient(cluster.url, token=cluster.token, ca_file=str(cluster.ca_file)) for _ in range(3)
    ]
    host, for_exchange, for_node = clients
    await define(host)
    planes = Planes(
        folder / "planes",
        clock=clock,
        tokens=tokens,
        crds=lambda plane: for_agents(),
        admit=admit,
        ca="the certificate",
    )
    ledger = Ledger.open(folder / "ledger.db")
    await offer(host, fleet)
    driver = EmbeddedDriver(planes, "https://127.0.0.1")
    nodes = SimulatedNodes(for_node, fleet, clock=clock, address="127.0.0.1", port=10250)
    parts = [
        asyncio.create_task(Controllers(host, driver, clock=clock).run()),
        asyncio.create_task(Exchange(for_exchange, ledger, tokens, clock=clock).run()),
        asyncio.create_task(nodes.run(beats=beats)),
    ]
    try:
        yield host, planes
        for part in parts:
            if part.done():
                part.result()
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await planes.close()
        ledger.close()
        for client in clients:
            await client.close()


async def until(client: KubeClient, kind: Any, name: str, says: Any, namespace: str = "") -> Any:
    """Follow one object until it says what is waited for."""
    fields = f"metadata.name={name}"
    async with asyncio.timeout(WITHIN):
        while True:
            listing = await client.list(kind, namespace or None, fields=fields)
            for obj in listing.items:
                if says(obj):
                    return obj
            async for event in client.watch(
                kind,
                namespace or None,
                resource_version=listing.resource_version,
                fields=fields,
            ):
                if event.type in ("ADDED", "MODIFIED") and says(event.object):
                    return event.object


def phase(*wanted: str) -> Any:
    return lambda obj: (obj.get("status") or {}).get("phase") in wanted


def has_wallet(agent: Any) -> bool:
    return phase("Ready")(agent) and labels.WALLET_FINALIZER in agent["metadata"]["finalizers"]


def waits(pod: Any) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("reason") == "Outbid" for c in conditions)


async def end(host: KubeClient, agent: str) -> None:
    """Delete an agent, and wait until all of it is gone."""
    await host.delete(AGENT, agent)
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                await host.get(AGENT, agent)
            except NotFound:
                return
            await asyncio.sleep(0.1)


async def story(cluster: Any, folder: Path) -> None:
    async with installed(cluster, folder) as (host, planes):
        for name, price in (("trainer", "1.00"), ("chat", "6.00")):
            agent = {
                "apiVersion": AGENT.api_version,
                "kind": "Agent",
                "metadata": {"name": name},
                "spec": {"owner": name, "refill": "100", "maxPrice": price},
            }
            await host.create(AGENT, agent)
            await until(host, AGENT, name, has_wallet)
        trainer, chat = planes.client("trainer"), planes.client("chat")
        await trainer.create(POD, pod("train"), "default")
        running = await until(trainer, POD, "train", phase("Running"))
        lease = running["spec"]["nodeName"]
        claim = await host.get(RESOURCE_CLAIM, lease, "agent-trainer")
        assert len(claim["status"]["allocation"]["devices"]["results"]) == 2
        assert (await trainer.get(NODE, lease))["status"]["allocatable"]["nvidia.com/gpu"] == "2"

        await chat.create(POD, pod("answer", seconds=2), "default")
        await until(chat, POD, "answer", phase("Running"))
        await until(trainer, POD, "train", waits)
        await until(chat, POD, "answer", phase("Succeeded"))
        await until(trainer, POD, "train", phase("Running"))

        for name in ("chat", "trainer"):
            await end(host, name)
        assert not (await host.list(GPU_LEASE)).items
        assert planes.names() == []
    report = verify(folder / "ledger.db")
    assert report.is_sound, report.problem


def test_the_first_path_on_a_real_api_server(cluster: Any, tmp_path: Path) -> None:
    asyncio.run(story(cluster, tmp_path))


WIRED = Fleet(
    nodes=[
        NodeDeclaration(name="plain", product="Story-9", gpus=1),
        NodeDeclaration(name="wired", product="Story-9", gpus=2),
    ],
    pools=[PoolDeclaration(product="Story-9", floor_price="0.20")],
)


async def with_a_nic(cluster: Any, folder: Path) -> None:
    async with installed(cluster, folder, WIRED) as (host, planes):
        spec = {"owner": "o", "refill": "100", "maxPrice": "1.00"}
        agent = {"metadata": {"name": "wirer"}, "spec": spec}
        await host.create(AGENT, {"apiVersion": AGENT.api_version, "kind": "Agent", **agent})
        await until(host, AGENT, "wirer", has_wallet)
        plane = planes.client("wirer")
        await host.create(RESOURCE_SLICE, nics("wired", 1))
        for one in (host, plane):
            await one.create(DEVICE_CLASS, NIC_CLASS)
        await plane.create(RESOURCE_CLAIM, gpu_and_nic("both"), "default")
        claiming = claiming_pod("both", resourceClaimName="both")
        await plane.create(POD, claiming, "default")
        running = await until(plane, POD, "both", phase("Running"))
        lease = running["spec"]["nodeName"]
        assert (await host.get(GPU_LEASE, lease, "agent-wirer"))["spec"]["node"] == "wired"
        (there,) = (await host.list(POD, "agent-wirer")).items
        names = [one["resourceClaimName"] for one in there["spec"]["resourceClaims"]]
        assert names[1] == f"{lease}-beside"
        claims = [await host.get(RESOURCE_CLAIM, name, "agent-wirer") for name in names]
        results = [one["status"]["allocation"]["devices"]["results"] for one in claims]
        assert [[one["driver"] for one in some] for some in results] == [
            ["gpu.bidplane.dev"],
            ["nic.example.com"],
        ]
        await end(host, "wirer")
        await host.delete(RESOURCE_SLICE, "wired-nics")
        await host.delete(DEVICE_CLASS, "nic.example.com")
    report = verify(folder / "ledger.db")
    assert report.is_sound, report.problem


def test_a_gpu_and_a_nic_on_a_real_api_server(cluster: Any, tmp_path: Path) -> None:
    asyncio.run(with_a_nic(cluster, tmp_path))
