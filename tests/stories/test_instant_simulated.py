"""
An eight-GPU fine-tune and a stream of sub-second asks share a node: the asks are bought from
the pool's float when they come, without a round, and the fine-tune notices nothing. The real
wiring under a virtual clock; and once more with server or exchange killed at each step.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, POD
from bidplane.api.money import parse_credits
from bidplane.api.pool import Divides
from bidplane.errors import AlreadyExists, NotFound, Unavailable
from bidplane.kube.client import KubeClient, Object
from bidplane.ledger import statement, verify
from bidplane.ledger.records import Lease
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import Part, World

# Two NVLink domains of eight, and four GPUs on the bus: twenty, of which one is kept.
DOMAINS = [list(range(8)), list(range(8, 16)), list(range(16, 20))]
FLEET = Fleet(
    nodes=[NodeDeclaration(name="big", product="H100", gpus=20, domains=DOMAINS)],
    pools=[
        PoolDeclaration(
            product="H100",
            divides=Divides.PARTS,
            notice_seconds=5,
            restart_seconds=5,
            instant_float_percent=5,
        )
    ],
)
ASKS = 8  # eighths: as much as one owner may buy of this float in a minute
LONGEST = 900.0


def agent(name: str) -> dict[str, Any]:
    spec = {"owner": f"owner-of-{name}", "refill": "1000", "maxPrice": "2.00"}
    return {
        "apiVersion": AGENT.api_version,
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(name: str, *, gpus: int = 0, seconds: str, **annotations: Any) -> dict[str, Any]:
    marks = {labels.SIMULATED_SECONDS: seconds}
    if not gpus:
        marks[labels.GPU_FRACTION] = "0.125"
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {**marks, **annotations}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def played(story: Callable[[World], Awaitable[None]], *kills: tuple[Part, int, float]) -> World:
    async def play() -> World:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), FLEET)
            for part, step, down in kills:
                world.plan_kill(part, step, down=down)
            try:
                await world.start_all()
                for name in ("trainer", "chat"):
                    await insist(world.client(), AGENT, agent(name))
                await world.until(lambda: ready(world), within=LONGEST)
                await story(world)
                await world.until(lambda: nothing_leased(world), within=LONGEST)
                await world.until(lambda: whole(world), within=LONGEST)
                world.check()
                check_money(world)
            finally:
                await world.stop()
            report = verify(world.ledger_file)
            assert report.is_sound, report.problem
            return world

    return run(play())


async def insist(client: KubeClient, kind: Any, obj: dict[str, Any]) -> None:
    """As a person does: try again while the server is away."""
    while True:
        try:
            await client.create(kind, obj, "default")
            return
        except AlreadyExists:
            return
        except Unavailable:
            await asyncio.sleep(0.5)


async def whole(world: World) -> bool:
    return world.is_whole


async def ready(world: World) -> bool:
    found = (await world.client().list(AGENT)).items
    return len(found) == 2 and all(
        (a.get("status") or {}).get("phase") == "Ready"
        and labels.WALLET_FINALIZER in a["metadata"].get("finalizers", ())
        for a in found
    )


async def nothing_leased(world: World) -> bool:
    return not (await world.client().list(GPU_LEASE)).items


async def seen(world: World, plane: str, name: str) -> Object | None:
    try:
        return await world.client(plane).get(POD, name, "default")
    except NotFound:
        return None


async def is_in(world: World, plane: str, name: str, *phases: str) -> bool:
    found = await seen(world, plane, name)
    return found is not None and (found.get("status") or {}).get("phase") in phases


async def started(world: World, plane: str, name: str) -> float:
    """Seconds until a pod that was just made has a node."""
    before = world.clock.now()

    async def bound() -> bool:
        found = await seen(world, plane, name)
        return found is not None and bool(found["spec"].get("nodeName"))

    await world.until(bound, within=LONGEST)
    return world.clock.now() - before


def leases(world: World, name: str) -> list[Lease]:
    assert world.ledger is not None
    (wallet,) = world.ledger.wallets_named(name)
    return world.ledger.leases_of(wallet.id)


def check_money(world: World) -> None:
    """Every statement adds up, nothing is held, and every ask was paid for once."""
    ledger = world.ledger
    assert ledger is not None
    for name in ("trainer", "chat"):
        (wallet,) = ledger.wallets_named(name)
        found = statement(ledger, wallet.id.partition("/")[2], now=round(world.clock.now() * 1000))
        assert found is not None
        assert sum(line.amount for line in found.lines) == found.balance == wallet.posted
        assert found.held == 0
    for lease in leases(world, "chat"):
        rents = [t for t in ledger.transfers_of(lease.wallet) if t.lease == lease.id]
        assert sum(t.amount for t in rents) == lease.charged


async def a_fine_tune_and_a_stream(world: World) -> list[float]:
    trainer, chat = world.client("trainer"), world.client("chat")
    await insist(trainer, POD, pod("tune", gpus=8, seconds="60"))
    await world.until(lambda: is_in(world, "trainer", "tune", "Running"), within=LONGEST)
    first = await seen(world, "trainer", "tune")
    assert first is not None
    await asyncio.sleep(1.4)  # the stream begins between two rounds, and goes on at its own pace
    waited = []
    for n in range(ASKS):
        await insist(chat, POD, pod(f"ask-{n}", seconds="0.4"))
        waited.append(await started(world, "chat", f"ask-{n}"))
        await asyncio.sleep(0.37)
    for n in range(ASKS):
        name = f"ask-{n}"
        await world.until(lambda n=name: is_in(world, "chat", n, "Succeeded"), within=LONGEST)  # type: ignore[misc]
    await world.until(lambda: is_in(world, "trainer", "tune", "Succeeded"), within=LONGEST)
    last = await seen(world, "trainer", "tune")
    assert last is not None
    assert last["metadata"]["uid"] == first["metadata"]["uid"], "the fine-tune was disturbed"
    return waited


def test_the_stream_waits_for_no_round_and_disturbs_nobody() -> None:
    async def story(world: World) -> None:
        waited = await a_fine_tune_and_a_stream(world)
        # A round is a second away, on average half of one; the float is there at once.
        assert max(waited) <= 0.2, waited
        tune, *_ = leases(world, "trainer")
        asks = leases(world, "chat")
        assert len(leases(world, "trainer")) == 1
        assert len(asks) == ASKS
        assert all(lease.instant and lease.node == tune.node for lease in asks)
        assert {lease.share for lease in asks} == {"0.125"}
        assert tune.compensation == 0

    played(story)


def test_a_pod_may_rather_wait() -> None:
    async def story(world: World) -> None:
        chat = world.client("chat")
        patient: dict[str, Any] = {labels.INSTANT: "false"}
        await insist(chat, POD, pod("calm", seconds="1", **patient))
        await started(world, "chat", "calm")
        await world.until(lambda: is_in(world, "chat", "calm", "Succeeded"), within=LONGEST)
        (lease,) = leases(world, "chat")
        assert not lease.instant
        assert not (await chat.list(BID)).items, "the bid of a pod that ended is over"

    played(story)


async def one_ask(world: World) -> None:
    await insist(world.client("chat"), POD, pod("ask", seconds="0.4"))
    await world.until(lambda: is_in(world, "chat", "ask", "Succeeded"), within=LONGEST)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["exchange", "server"])
def test_killed_anywhere_between_ask_and_end_it_is_paid_once(part: Part) -> None:
    """At every step of the exchange, and every third of the server, from bid to release."""

    async def before(world: World) -> None:
        pass

    calm = played(one_ask)
    stride = 1 if part == "exchange" else 3  # it is the exchange that sells and pays
    for step in range(played(before).steps[part] + 1, calm.steps[part] + 1, stride):

        async def story(world: World) -> None:
            await one_ask(world)
            await world.until(lambda: nothing_leased(world), within=LONGEST)
            await world.until(lambda: whole(world), within=LONGEST)
            found = leases(world, "chat")
            # Down for long, a lease may have gone unclaimed; then the pod bought another.
            assert [lease.charged > 0 for lease in found if lease.active_at] == [True]

        played(story, (part, step, 0.3))


def test_a_pod_ends_with_its_budget_and_says_so() -> None:
    """It has notice before the last of it is spent, comes back, and is told why it waits."""

    async def story(world: World) -> None:
        chat = world.client("chat")
        terms = {labels.BUDGET: "0.004", labels.MAX_PRICE: "0.20"}
        asked = pod("tight", gpus=1, seconds="600", **terms)
        await insist(chat, POD, asked)

        async def says_so() -> bool:
            found = await seen(world, "chat", "tight")
            if found is None or found["metadata"]["annotations"].get(labels.EVICTIONS) != "1":
                return False
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any(c.get("reason") == "BudgetSpent" for c in conditions)

        await world.until(says_so, within=LONGEST)
        (lease,) = leases(world, "chat")
        assert lease.reason == "BudgetSpent"
        assert 3000 < lease.charged <= 4000
        (bid,) = (await chat.list(BID)).items
        assert parse_credits(bid["status"]["spent"]) == lease.charged
        assert bid["spec"]["work"] == lease.work
        await chat.delete(POD, "tight", "default")

    played(story)
