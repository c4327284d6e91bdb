"""
A Deployment and a Job that ask for GPUs: their pods win them, are evicted when another
agent pays more, and are replaced by their controllers, which bid again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, DEPLOYMENT, JOB, POD, POD_TEMPLATE, Kind
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import World

FLEET = Fleet(
    nodes=[NodeDeclaration(name="h100", product="H100", gpus=2)],
    pools=[
        PoolDeclaration(product="H100", floor_price="0.20", notice_seconds=5, restart_seconds=5)
    ],
)


def template(seconds: int, **spec: Any) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": "2"}}
    return {
        "metadata": {
            "labels": {"app": "work"},
            "annotations": {labels.SIMULATED_SECONDS: str(seconds)},
        },
        "spec": {"containers": [{"name": "main", "image": "x", "resources": resources}], **spec},
    }


WORKLOADS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "deployment": (
        DEPLOYMENT,
        {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "work"}},
            "template": template(100_000),
        },
    ),
    "job": (JOB, {"template": template(60, restartPolicy="Never")}),
}


@pytest.mark.parametrize("which", WORKLOADS)
def test_an_outbid_workload_comes_back(which: str) -> None:
    kind, spec = WORKLOADS[which]

    async def story() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), FLEET)
            try:
                await play(world, kind, spec)
                world.check()
            finally:
                await world.stop()

    run(story())


async def play(world: World, kind: Kind, spec: dict[str, Any]) -> None:
    await world.start_all()
    host, trainer, chat = world.client(), world.client("trainer"), world.client("chat")
    for name, price in (("trainer", "1.00"), ("chat", "6.00")):
        agent = {"owner": name, "refill": "100", "maxPrice": price}
        await host.create(AGENT, {"metadata": {"name": name}, "spec": agent})

    async def agents_ready() -> bool:
        found = (await host.list(AGENT)).items
        return all((a.get("status") or {}).get("phase") == "Ready" for a in found)

    await world.until(agents_ready, within=60)
    await trainer.create(kind, {"metadata": {"name": "work"}, "spec": spec}, "default")

    async def running() -> set[str]:
        pods = (await trainer.list(POD)).items
        return {
            str(p["metadata"]["uid"])
            for p in pods
            if (p.get("status") or {}).get("phase") == "Running"
            and "deletionTimestamp" not in p["metadata"]
        }

    async def runs() -> bool:
        return bool(await running())

    await world.until(runs, within=60)
    (first,) = await running()
    answer = template(20, restartPolicy="Never") | {"metadata": {
        "name": "answer", "annotations": {labels.SIMULATED_SECONDS: "20"}}}  # fmt: skip
    await chat.create(POD, answer, "default")

    async def another_runs() -> bool:
        return bool(await running() - {first})

    await world.until(another_runs, within=300)
    assert (await chat.get(POD, "answer", "default"))["status"]["phase"] == "Succeeded"
    # The controller brought it back, not the likeness that is kept for bare pods.
    assert not (await trainer.list(POD_TEMPLATE)).items
    assert len(await running()) == 1
    if kind == JOB:

        async def complete() -> bool:
            status = (await trainer.get(JOB, "work", "default")).get("status") or {}
            return any(c["type"] == "Complete" for c in status.get("conditions") or ())

        await world.until(complete, within=300)
        status = (await trainer.get(JOB, "work", "default"))["status"]
        assert (status["succeeded"], status["failed"]) == (1, 1)
