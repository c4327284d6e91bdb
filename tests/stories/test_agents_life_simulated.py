"""
What happens to agents, in the simulator: the real wiring under a virtual clock.

Each test is one story of `docs/agents.md`, told through the API alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import (
    AGENT,
    BID,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    GPU_LEASE,
    JOB,
    NAMESPACE,
    NODE,
    POD,
    RESOURCE_SLICE,
    SECRET,
)
from bidplane.client import asking
from bidplane.errors import ApiError, NotFound
from bidplane.ledger import statement, verify
from bidplane.node.fleet import Card, Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.loop import run
from bidplane.sim.world import World

POOL = PoolDeclaration(product="H100", floor_price="0.20", notice_seconds=6, restart_seconds=6)


def fleet(*nodes: NodeDeclaration) -> Fleet:
    return Fleet(nodes=list(nodes), pools=[POOL])


TWO = fleet(NodeDeclaration(name="h100", product="H100", gpus=2))


def pod(name: str, *, gpus: int = 2, seconds: int | None = None, **notes: str) -> dict[str, Any]:
    annotations = {f"bidplane.dev/{key.replace('_', '-')}": text for key, text in notes.items()}
    if seconds is not None:
        annotations[labels.SIMULATED_SECONDS] = str(seconds)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "x",
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                }
            ],
        },
    }


class Stage:
    def __init__(self, world: World) -> None:
        self.world = world
        self.host = world.client()

    @property
    def now(self) -> float:
        return self.world.clock.now()

    async def agent(self, name: str, price: str = "1.00", refill: str = "100") -> None:
        agent = {
            "apiVersion": AGENT.api_version,
            "kind": "Agent",
            "metadata": {"name": name},
            "spec": {"owner": name, "refill": refill, "maxPrice": price, "team": "t"},
        }
        await self.host.create(AGENT, agent)

        async def ready() -> bool:
            found = await self.host.get(AGENT, name)
            return (found.get("status") or {}).get(
                "phase"
            ) == "Ready" and labels.WALLET_FINALIZER in found["metadata"]["finalizers"]

        await self.world.until(ready, within=60)

    async def apply(self, agent: str, wanted: Mapping[str, Any], kind: Any = POD) -> None:
        await self.world.client(agent).create(kind, wanted, "default")

    async def pod(self, agent: str, name: str) -> Any:
        try:
            return await self.world.client(agent).get(POD, name, "default")
        except NotFound:
            return None

    async def until(self, agent: str, name: str, phase: str, within: float = 300) -> Any:
        async def so() -> bool:
            found = await self.pod(agent, name)
            return found is not None and (found.get("status") or {}).get("phase") == phase

        await self.world.until(so, within=within)
        return await self.pod(agent, name)

    async def until_reason(self, agent: str, name: str, reason: str, within: float = 120) -> Any:
        async def so() -> bool:
            found = await self.pod(agent, name)
            return found is not None and reason in [
                c.get("reason") for c in (found.get("status") or {}).get("conditions") or ()
            ]

        try:
            await self.world.until(so, within=within)
        except TimeoutError:
            found = await self.pod(agent, name)
            raise AssertionError(found and found["status"]) from None
        return await self.pod(agent, name)

    async def reasons(self, agent: str) -> set[str]:
        return {e["reason"] for e in (await self.world.client(agent).list(EVENT)).items}

    async def messages(self, agent: str, reason: str, part: str) -> list[str]:
        """Of Events with that reason, those that say so."""
        events = (await self.world.client(agent).list(EVENT)).items
        return [e["message"] for e in events if e["reason"] == reason and part in e["message"]]

    async def devices(self, agent: str) -> list[list[str]]:
        leases = (await self.world.client(agent).list(GPU_LEASE)).items
        return [[d["name"] for d in lease["spec"]["devices"]] for lease in leases]

    def lines(self, agent: str) -> list[tuple[str, int]]:
        ledger = self.world.ledger
        assert ledger is not None
        (wallet,) = ledger.wallets_named(agent)
        found = statement(ledger, wallet.id.partition("/")[2], now=int(self.now * 1000))
        assert found is not None
        assert sum(line.amount for line in found.lines) == wallet.posted
        return [(line.kind.value, line.amount) for line in found.lines]


def play(folder: Path, what: Fleet, story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        world = World(folder, what)
        await world.start_all()
        try:
            await story(Stage(world))
            world.check()
        finally:
            await world.stop()
        report = verify(world.ledger_file)
        assert report.is_sound, report.problem

    run(whole())


def test_urgent_work_preempts_training_which_saves_is_paid_and_resumes(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await stage.agent("chat", price="9.00")
        await stage.apply("trainer", pod("train", seconds=60, checkpoint_command="save"))
        await stage.until("trainer", "train", "Running")
        await asyncio.sleep(40)
        asked = stage.now
        await stage.apply("chat", pod("answer", seconds=10))
        told = await stage.until_reason("trainer", "train", "PreemptionByScheduler")
        assert msgspec.json.decode(told["metadata"]["annotations"][labels.NOTICE])["reason"] == (
            "Outbid"
        )
        await stage.until("chat", "answer", "Running")
        # Notice and two seconds: what it is to wait for a full fleet.
        assert stage.now - asked < 6 + 2
        assert {"Outbid", "Checkpointed"} <= await stage.reasons("trainer")
        assert "compensation" in [kind for kind, _ in stage.lines("trainer")]
        again = await stage.until("trainer", "train", "Running")
        resumed = stage.now
        assert again["metadata"]["annotations"][labels.EVICTIONS] == "1"
        assert labels.NOTICE not in again["metadata"]["annotations"]
        await stage.until("trainer", "train", "Succeeded")
        # Of the sixty seconds forty were saved.
        assert stage.now - resumed < 25

    play(tmp_path, TWO, story)


def test_a_checkpoint_that_hangs_does_not_outlast_the_notice(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await stage.agent("chat", price="9.00")
        await stage.apply("trainer", pod("train", checkpoint_command="save"))
        await stage.until("trainer", "train", "Running")
        await asyncio.sleep(10)
        await stage.world.kill("node")  # nobody runs the command
        await stage.apply("chat", pod("answer", seconds=10))
        await stage.until_reason("trainer", "train", "PreemptionByScheduler")

        async def ending() -> bool:
            found = await stage.pod("trainer", "train")
            return found is not None and "deletionTimestamp" in found["metadata"]

        await stage.world.until(ending, within=6)
        await stage.world.start("node")
        await stage.until("chat", "answer", "Running")

    play(tmp_path, TWO, story)


def test_four_of_one_domain_though_seven_scattered_are_free(tmp_path: Path) -> None:
    box = NodeDeclaration(
        name="box", product="H100", domains=[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    )

    async def story(stage: Stage) -> None:
        await stage.agent("many")
        await stage.agent("tp")
        for number in range(12):
            await stage.apply("many", pod(f"one-{number}", gpus=1))
        where: dict[int, str] = {}
        for number in range(12):
            found = await stage.until("many", f"one-{number}", "Running")
            lease = await stage.world.client("many").get(
                GPU_LEASE, found["spec"]["nodeName"], "default"
            )
            where[int(lease["spec"]["devices"][0]["name"].removeprefix("gpu-"))] = f"one-{number}"
        free = [1, 2, 3, 5, 6, 7, 11]  # three, three and one
        for gpu in free:
            await stage.world.client("many").delete(POD, where[gpu], "default")

        async def are_free() -> bool:
            return len((await stage.host.list(GPU_LEASE)).items) == 5

        await stage.world.until(are_free, within=60)
        await stage.apply("tp", pod("tp4", gpus=4, link="domain"))
        waits = await stage.until_reason("tp", "tp4", "Outbid")
        assert not await stage.devices("tp"), waits
        await stage.world.client("many").delete(POD, where[4], "default")
        await stage.until("tp", "tp4", "Running")
        assert await stage.devices("tp") == [["gpu-4", "gpu-5", "gpu-6", "gpu-7"]]

    play(tmp_path, fleet(box), story)


def test_an_agent_out_of_money_drains_after_notice(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        # Enough for some epochs of two GPUs, and no refill within the hour.
        await stage.agent("poor", refill="0.05")
        await stage.apply("poor", pod("train"))
        began = await stage.until("poor", "train", "Running")
        await stage.until_reason("poor", "train", "PreemptionByScheduler", within=900)
        assert "Unfunded" in await stage.reasons("poor")

        async def waits() -> bool:
            found = await stage.pod("poor", "train")
            return found is not None and found["metadata"]["uid"] != began["metadata"]["uid"]

        await stage.world.until(waits, within=60)
        await stage.until_reason("poor", "train", "WalletTooSmall")
        assert not await stage.devices("poor")
        assert sum(amount for _, amount in stage.lines("poor")) >= 0

    play(tmp_path, TWO, story)


def test_two_agents_with_the_same_names_never_meet(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        for agent in ("left", "right"):
            await stage.agent(agent)
            wanted = pod("train", gpus=1)
            wanted["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "key"}}]
            key = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "key"},
                "stringData": {"OF": agent},
            }
            await stage.apply(agent, key, SECRET)
            await stage.apply(agent, wanted)
        for agent in ("left", "right"):
            await stage.until(agent, "train", "Running")
            (secret,) = [
                s
                for s in (await stage.host.list(SECRET, host_namespace(agent))).items
                if labels.PLANE_NAME in (s["metadata"].get("annotations") or {})
            ]
            assert secret["data"]["OF"] != ""
            (there,) = (await stage.host.list(POD, host_namespace(agent))).items
            env = there["spec"]["containers"][0]["envFrom"]
            assert env == [{"secretRef": {"name": secret["metadata"]["name"]}}]
        await stage.world.client("left").delete(POD, "train", "default")

        async def gone() -> bool:
            return await stage.pod("left", "train") is None

        await stage.world.until(gone, within=60)
        assert (await stage.pod("right", "train"))["status"]["phase"] == "Running"

    play(tmp_path, TWO, story)


@pytest.mark.parametrize("moment", [0.0, 0.4, 1.3, 2.5, 30.0])
def test_an_agent_deleted_in_the_middle_leaves_nothing(tmp_path: Path, moment: float) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("gone")
        await stage.agent("stays")
        await stage.apply("gone", pod("train"))
        await stage.apply("gone", pod("waits"))
        await asyncio.sleep(moment)
        await stage.host.delete(AGENT, "gone")

        async def over() -> bool:
            try:
                await stage.host.get(AGENT, "gone")
            except NotFound:
                return True
            return False

        await stage.world.until(over, within=120)
        for kind in (POD, BID, GPU_LEASE, CONFIG_MAP, SECRET):
            assert not (await stage.host.list(kind, host_namespace("gone"))).items
        names = [n["metadata"]["name"] for n in (await stage.host.list(NAMESPACE)).items]
        assert host_namespace("gone") not in names
        with pytest.raises(ApiError):
            await stage.world.client("gone").list(POD)
        ledger = stage.world.ledger
        assert ledger is not None
        (wallet,) = ledger.wallets_named("gone")
        assert (wallet.is_open, wallet.posted, wallet.held) == (False, 0, 0)
        # What it had is sold again, and another agent may take its name.
        await stage.agent("gone")
        await stage.apply("gone", pod("train", seconds=5))
        await stage.until("gone", "train", "Succeeded")

    play(tmp_path, TWO, story)


def test_a_long_fine_tune_and_a_stream_of_short_asks_share_a_node(tmp_path: Path) -> None:
    box = NodeDeclaration(name="box", product="H100", domains=[list(range(8)), [8, 9]])

    async def story(stage: Stage) -> None:
        await stage.agent("tune", price="2.00")
        await stage.agent("asks", price="4.00")
        await stage.apply("tune", pod("tune", gpus=8, seconds=120))
        began = await stage.until("tune", "tune", "Running")
        for number in range(20):
            wanted = pod(f"ask-{number}", gpus=1)
            wanted["metadata"]["annotations"][labels.SIMULATED_SECONDS] = "0.5"
            await stage.apply("asks", wanted)
            await asyncio.sleep(1)
        for number in range(20):
            await stage.until("asks", f"ask-{number}", "Succeeded")
        ended = await stage.until("tune", "tune", "Succeeded")
        assert ended["metadata"]["uid"] == began["metadata"]["uid"]

    play(tmp_path, fleet(box), story)


@pytest.mark.parametrize("slices_too", [True, False])
def test_a_host_node_dies_and_its_work_goes_on_elsewhere(tmp_path: Path, slices_too: bool) -> None:
    """Whether what it published is left behind, or not: nothing is sold of it any more."""
    two = fleet(
        NodeDeclaration(name="one", product="H100", gpus=2),
        NodeDeclaration(name="two", product="H100", gpus=2),
    )

    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await stage.apply("trainer", pod("bare", seconds=20))
        job: dict[str, Any] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "job"},
            "spec": {
                "backoffLimit": 0,
                "podFailurePolicy": {
                    "rules": [
                        {
                            "action": "Ignore",
                            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                        }
                    ]
                },
                "template": {
                    "metadata": pod("x", seconds=20)["metadata"] | {"name": None},
                    "spec": pod("x")["spec"],
                },
            },
        }
        del job["spec"]["template"]["metadata"]["name"]
        await stage.apply("trainer", job, JOB)

        async def both_run() -> bool:
            pods = (await stage.world.client("trainer").list(POD)).items
            return [p["status"].get("phase") for p in pods] == ["Running", "Running"]

        await stage.world.until(both_run, within=60)
        await asyncio.sleep(5)
        if slices_too:
            await stage.host.delete(RESOURCE_SLICE, "one-gpus")
        await stage.host.delete(NODE, "one")
        await stage.until("trainer", "bare", "Succeeded")

        async def job_done() -> bool:
            found = await stage.world.client("trainer").get(JOB, "job", "default")
            return (found.get("status") or {}).get("succeeded") == 1

        await stage.world.until(job_done, within=300)
        events = (await stage.world.client("trainer").list(EVENT)).items
        lost = sum(event.get("count", 1) for event in events if event["reason"] == "NodeLost")
        assert lost == 1, "it went back to where it was lost"

    play(tmp_path, two, story)


def test_a_pod_whose_host_pod_vanishes_says_so_and_is_replaced(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        one = pod("x", seconds=300)
        template = {
            "metadata": {
                "labels": {"app": "serve"},
                "annotations": one["metadata"]["annotations"],
            },
            "spec": {**one["spec"], "restartPolicy": "Always"},
        }
        selector = {"matchLabels": {"app": "serve"}}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "serve"},
            "spec": {"replicas": 1, "selector": selector, "template": template},
        }
        await stage.apply("trainer", deployment, DEPLOYMENT)
        client = stage.world.client("trainer")

        async def running() -> list[Any]:
            found = (await client.list(POD)).items
            return [p for p in found if (p.get("status") or {}).get("phase") == "Running"]

        async def one_runs() -> bool:
            return len(await running()) == 1

        await stage.world.until(one_runs, within=60)
        (first,) = await running()
        (there,) = (await stage.host.list(POD)).items
        await stage.host.delete(
            POD, there["metadata"]["name"], there["metadata"]["namespace"], grace_seconds=0
        )

        async def another_runs() -> bool:
            return [p["metadata"]["uid"] != first["metadata"]["uid"] for p in await running()] == [
                True
            ]

        await stage.world.until(another_runs, within=60)
        lost = await stage.pod("trainer", first["metadata"]["name"])
        assert lost is not None
        assert (lost["status"]["phase"], lost["status"]["reason"]) == ("Failed", "HostPodLost")
        # One lease is in use: what the lost one had was given back.
        assert len((await stage.host.list(GPU_LEASE)).items) == 1

    play(tmp_path, TWO, story)


def test_a_suspended_agent_keeps_everything_and_spends_nothing(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("trainer")
        await stage.apply("trainer", pod("train", seconds=60, checkpoint_command="save"))
        await stage.until("trainer", "train", "Running")
        by_hand = {
            "apiVersion": BID.api_version,
            "kind": "Bid",
            "metadata": {"name": "mine"},
            "spec": {"gpus": 2, "maxPrice": "0.50"},
        }
        await stage.apply("trainer", by_hand, BID)
        await asyncio.sleep(30)
        await stage.host.patch(AGENT, "trainer", {"spec": {"suspended": True}})
        waits = await stage.until_reason("trainer", "train", "AgentSuspended")
        assert {"Suspended", "Checkpointed"} <= await stage.reasons("trainer")
        assert not (await stage.host.list(GPU_LEASE)).items
        assert not (await stage.host.list(BID)).items
        assert (await stage.host.get(AGENT, "trainer"))["status"]["phase"] == "Suspended"
        paid = [line for line in stage.lines("trainer") if line[0] != "refill"]
        await asyncio.sleep(600)
        assert [line for line in stage.lines("trainer") if line[0] != "refill"] == paid
        bids = (await stage.world.client("trainer").list(BID)).items
        assert [bid["metadata"]["name"] for bid in bids] == ["mine"]
        assert (await stage.pod("trainer", "train"))["metadata"]["uid"] == waits["metadata"]["uid"]

        await stage.world.client("trainer").delete(BID, "mine", "default")
        await stage.host.patch(AGENT, "trainer", {"spec": {"suspended": False}})
        await stage.until("trainer", "train", "Running")
        resumed = stage.now
        await stage.until("trainer", "train", "Succeeded")
        assert stage.now - resumed < 35, "of the sixty seconds thirty were saved"

    play(tmp_path, TWO, story)


def test_pending_is_explained_to_programs_and_only_when_it_is_news(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.agent("rich", price="3.00")
        await stage.agent("poor", price="0.50")
        await stage.apply("rich", pod("train"))
        await stage.until("rich", "train", "Running")
        await stage.apply("poor", pod("train"))
        await stage.until_reason("poor", "train", "Outbid")
        await asyncio.sleep(1)
        waits = await stage.pod("poor", "train")
        said = msgspec.json.decode(waits["metadata"]["annotations"][labels.PENDING])
        assert said["reason"] == "Outbid"
        assert float(said["priceToWinNow"]) > 0.5
        assert said["wallet"] == "100.00"
        assert said["expectedWaitSeconds"] is None  # six times the price is beyond any age
        assert said["remedies"][0]["action"] == "raiseMaxPrice"
        await asyncio.sleep(30)
        again = await stage.pod("poor", "train")
        assert again["metadata"]["resourceVersion"] == waits["metadata"]["resourceVersion"]
        # It does as it is told: pays what wins.
        price = {"metadata": {"annotations": {labels.MAX_PRICE: "9.00"}}}
        await stage.world.client("poor").patch(POD, "train", price, "default")
        runs = await stage.until("poor", "train", "Running")
        assert labels.PENDING not in (runs["metadata"].get("annotations") or {})

    play(tmp_path, TWO, story)


def test_the_x4_card_is_never_part_of_a_set_that_asked_for_x16(tmp_path: Path) -> None:
    box = NodeDeclaration(
        name="box",
        product="H100",
        cards=[Card(width=16), Card(width=16), Card(width=4), Card(width=16)],
    )

    async def story(stage: Stage) -> None:
        await stage.agent("one")
        for number in range(4):
            bid = asking.bid(f"wide-{number}", gpus=1, max_price="1.00", link="x16")
            await stage.apply("one", bid, BID)

        async def three_won() -> bool:
            return len(await stage.devices("one")) == 3

        await stage.world.until(three_won, within=60)
        await asyncio.sleep(10)
        assert sorted(await stage.devices("one")) == [["gpu-0"], ["gpu-1"], ["gpu-3"]]
        bids = (await stage.world.client("one").list(BID)).items
        (waits,) = [b for b in bids if b["status"]["phase"] == "Waiting"]
        assert waits["status"]["reason"] in ("Outbid", "NoFreeBlock")

    play(tmp_path, fleet(box), story)


def test_nvlink_is_asked_for_and_scattered_is_allowed(tmp_path: Path) -> None:
    two = fleet(
        NodeDeclaration(name="plain", product="H100", gpus=4),
        NodeDeclaration(name="linked", product="H100", gpus=4, nvlink=18),
    )

    async def story(stage: Stage) -> None:
        await stage.agent("one")
        bid = asking.bid("linked", gpus=4, max_price="1.00", link="nvlink")
        await stage.apply("one", bid, BID)

        async def won() -> bool:
            return bool(await stage.devices("one"))

        await stage.world.until(won, within=60)
        (lease,) = (await stage.world.client("one").list(GPU_LEASE)).items
        assert lease["spec"]["node"] == "linked"

    play(tmp_path, two, story)
