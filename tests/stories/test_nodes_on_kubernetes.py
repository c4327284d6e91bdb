"""
Nodes of a real cluster, taken out of service as its owner does it: its own controllers and its
own kubectl say what becomes of them, and the exchange sells by that.
"""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.kinds import AGENT, GPU_LEASE, NODE, POD
from bidplane.ledger import verify
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration

from .conftest import pod
from .test_bid_to_pod_on_kubernetes import end, has_wallet, installed, phase, until

pytestmark = [pytest.mark.slow, pytest.mark.kube]

FLEET = Fleet(
    nodes=[
        NodeDeclaration(name="left", product="Story-2", gpus=2),
        NodeDeclaration(name="right", product="Story-2", gpus=2),
    ],
    pools=[PoolDeclaration(product="Story-2", floor_price="0.20", notice_seconds=3)],
)


def says(words: str) -> Any:
    return lambda pod: words in str((pod.get("status") or {}).get("conditions"))


async def story(cluster: Any, folder: Path) -> None:
    async def kubectl(*words: str) -> None:
        command = [str(cluster.binaries["kubectl"]), "--kubeconfig", str(cluster.kubeconfig)]
        done = await asyncio.to_thread(
            subprocess.run, [*command, *words], capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stdout + done.stderr

    async with installed(cluster, folder, FLEET, beats=True) as (host, planes):
        for name in ("hauler", "rival"):
            agent = {
                "apiVersion": AGENT.api_version,
                "kind": "Agent",
                "metadata": {"name": name},
                "spec": {"owner": name, "refill": "100", "maxPrice": "5.00"},
            }
            await host.create(AGENT, agent)
            await until(host, AGENT, name, has_wallet)
        hauler, rival = planes.client("hauler"), planes.client("rival")
        await hauler.create(POD, pod("first"), "default")
        running = await until(hauler, POD, "first", phase("Running"))
        there = (await host.get(GPU_LEASE, running["spec"]["nodeName"], "agent-hauler"))["spec"]
        (other,) = {"left", "right"} - {there["node"]}

        await kubectl("cordon", other)
        await rival.create(POD, pod("second", price="1.00"), "default")
        withheld = f"(2 of 4 Story-2 are on node {other}, which is cordoned)"
        await until(rival, POD, "second", says(withheld))

        await kubectl("uncordon", other)
        await kubectl("drain", there["node"], "--force", "--ignore-daemonsets", "--timeout=60s")
        # Of the two, the one that offers more has what is left.
        again = await until(hauler, POD, "first", lambda one: _runs_anew(one, running))
        now = (await host.get(GPU_LEASE, again["spec"]["nodeName"], "agent-hauler"))["spec"]
        assert now["node"] == other

        for name in ("hauler", "rival"):
            await end(host, name)
        await host.delete(NODE, "left")
        await host.delete(NODE, "right")
    report = verify(folder / "ledger.db")
    assert report.is_sound, report.problem


def _runs_anew(one: Any, before: Any) -> bool:
    return one["metadata"]["uid"] != before["metadata"]["uid"] and phase("Running")(one)


def test_cordon_and_drain_on_a_real_cluster(cluster: Any, tmp_path: Path) -> None:
    asyncio.run(story(cluster, tmp_path))
