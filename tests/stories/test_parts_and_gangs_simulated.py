"""
From a pod to a running pod where a lease is not simply GPUs of one node: a fraction of a GPU, a
MIG instance, and gangs. The real wiring under a virtual clock.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import (
    AGENT,
    BID,
    EVENT,
    GPU_LEASE,
    NODE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
)
from bidplane.api.money import GPU_WEIGHT
from bidplane.api.pool import Divides, MigSlot
from bidplane.core.devices.mig import Slot
from bidplane.errors import NotFound
from bidplane.ledger import statement
from bidplane.ledger.records import lease_id
from bidplane.ledger.rounds import explain_bid
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.world import World
from bidplane.wire.quantity import parse

from .playing import agent, played

FLEET = Fleet(
    nodes=[
        NodeDeclaration(name="l40", product="L40", memory="48Gi", gpus=1),
        NodeDeclaration(name="h100-a", product="H100", memory="80Gi", gpus=1, mig=True),
        NodeDeclaration(name="a100-a", product="A100", memory="40Gi", gpus=2),
        NodeDeclaration(name="a100-b", product="A100", memory="40Gi", gpus=2),
    ],
    pools=[
        PoolDeclaration(product="L40", divides=Divides.PARTS, notice_seconds=5),
        PoolDeclaration(
            product="H100",
            divides=Divides.MIG,
            geometry=[MigSlot(profile="3g.40gb", start=4), MigSlot(profile="1g.10gb", start=2)],
        ),
        PoolDeclaration(product="A100", notice_seconds=5, restart_seconds=5),
    ],
)


def pod(name: str, *, limits: dict[str, str] | None = None, **annotations: Any) -> dict[str, Any]:
    marks = {key.replace("__", "/").replace("_", "-"): v for key, v in annotations.items()}
    marks.setdefault(labels.SIMULATED_SECONDS, "20")
    container = {"name": "main", "image": "x", "resources": {"limits": limits or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": marks},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


async def phase(world: World, name: str, wanted: str, plane: str = "trainer") -> bool:
    try:
        found = await world.client(plane).get(POD, name, "default")
    except NotFound:
        return False
    return (found.get("status") or {}).get("phase") == wanted


async def until_phase(world: World, wanted: str, *names: str, plane: str = "trainer") -> None:
    for name in names:
        await world.until(lambda n=name: phase(world, n, wanted, plane), within=600)  # type: ignore[misc]


async def nothing_leased(world: World) -> bool:
    return not (await world.client().list(GPU_LEASE)).items


def test_a_pod_that_asks_for_memory_gets_the_part_that_has_it() -> None:
    """As KAI reads it: 10,000 MiB are a fifth of 48 GiB; and it is told what a part is not."""

    async def story(world: World) -> None:
        plane = world.client("trainer")
        mark = {"bidplane.dev/pool": "l40"}
        asks = pod("some", gpu_memory="10000")
        asks["metadata"]["annotations"] |= mark
        await plane.create(POD, asks, "default")
        await until_phase(world, "Running", "some")
        (node,) = (await plane.list(NODE)).items
        assert node["status"]["capacity"][labels.PART_RESOURCE] == "20"
        assert node["metadata"]["labels"][labels.ISOLATION] == "none"
        told = [event["reason"] for event in (await plane.list(EVENT)).items]
        assert "NoIsolation" in told
        await until_phase(world, "Succeeded", "some")

    played(story, FLEET, "trainer", "chat")


def test_a_pod_that_asks_for_half_a_gpu_runs_on_half_a_gpu() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        for name in ("one", "two"):
            await plane.create(POD, pod(name, gpu_fraction="0.5"), "default")
        await until_phase(world, "Running", "one", "two")
        nodes = (await plane.list(NODE)).items
        assert [n["status"]["capacity"][labels.PART_RESOURCE] for n in nodes] == ["50", "50"]
        assert all(labels.GPU_RESOURCE not in n["status"]["capacity"] for n in nodes)
        slices = (await plane.list(RESOURCE_SLICE)).items
        shown = sorted(d["name"] for s in slices for d in s["spec"]["devices"])
        assert shown == ["gpu-0-0-5-0", "gpu-0-0-5-1200"]
        memory = {d["capacity"]["memory"]["value"] for s in slices for d in s["spec"]["devices"]}
        assert memory == {"24Gi"}
        leases = (await world.client().list(GPU_LEASE)).items
        (left,), (right,) = (lease["spec"]["devices"] for lease in leases)
        assert (left["node"], left["name"]) == (right["node"], right["name"])
        assert sorted([left["units"], right["units"]]) == [[0, 1200], [1200, 2400]]
        claim = (await world.client().list(RESOURCE_CLAIM)).items[0]
        (config,) = claim["spec"]["devices"]["config"]
        assert config["opaque"]["parameters"]["devices"][0]["share"] == "0.5"
        # A third finds the GPU full, and says what would have won.
        await plane.create(POD, pod("three", gpu_fraction="0.125"), "default")

        async def outbid() -> bool:
            found = await plane.get(POD, "three", "default")
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any(c.get("reason") in ("Outbid", "NoFreeBlock") for c in conditions)

        await world.until(outbid, within=60)
        await until_phase(world, "Succeeded", "one", "two", "three")
        await world.until(lambda: nothing_leased(world), within=60)
        ledger = world.ledger
        assert ledger is not None
        (wallet,) = ledger.wallets_named("trainer")
        now = int(world.clock.now() * 1000)
        found = statement(ledger, wallet.id.partition("/")[2], now=now)
        assert found is not None
        texts = [line.text for line in found.lines]
        assert any("0.5 of a GPU" in text for text in texts), texts
        # Twenty-odd seconds of half a GPU at the floor: half of what a whole one costs.
        rents = [-line.amount for line in found.lines if "0.5 of" in line.text]
        assert sum(rents) < 2 * 30 * 100_000 // 3600

    played(story, FLEET, "trainer", "chat")


def test_three_tenths_twice_and_four_tenths_share_one_gpu() -> None:
    """As they were asked for: in the plane, on the host, in the round's verdict and in the rent."""
    tenths = {"a": 3, "b": 3, "c": 4}

    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        for name, n in tenths.items():
            fraction = pod(name, gpu_fraction=f"0.{n}")
            fraction["metadata"]["annotations"][labels.SIMULATED_SECONDS] = "60"
            await plane.create(POD, fraction, "default")
        await until_phase(world, "Running", "a", "b", "c")
        leases = (await host.list(GPU_LEASE)).items
        parts = [device for lease in leases for device in lease["spec"]["devices"]]
        assert {part["name"] for part in parts} == {"gpu-0"}
        assert sorted(part["share"] for part in parts) == ["0.3", "0.3", "0.4"]
        edges = sorted(tuple(part["units"]) for part in parts)
        assert edges[0][0] == 0
        assert edges[-1][1] == 2400
        assert all(this[1] == after[0] for this, after in itertools.pairwise(edges))
        nodes = (await plane.list(NODE)).items
        assert sorted(n["status"]["capacity"][labels.PART_RESOURCE] for n in nodes) == [
            "30",
            "30",
            "40",
        ]
        slices = (await plane.list(RESOURCE_SLICE)).items
        memory = sorted(
            parse(d["capacity"]["memory"]["value"]) / (48 << 30)
            for s in slices
            for d in s["spec"]["devices"]
        )
        assert [round(float(part), 6) for part in memory] == [0.3, 0.3, 0.4]
        claims = (await host.list(RESOURCE_CLAIM)).items
        handed = [one["spec"]["devices"]["config"][0]["opaque"]["parameters"] for one in claims]
        assert sorted(one["devices"][0]["share"] for one in handed) == ["0.3", "0.3", "0.4"]

        ledger = world.ledger
        assert ledger is not None
        for lease in leases:
            (device,) = lease["spec"]["devices"]
            verdict = explain_bid(ledger, lease["spec"]["bid"]["uid"])
            assert verdict is not None
            assert f"{device['share']} of a GPU in l40" in verdict.sentence
        await until_phase(world, "Succeeded", "a", "b", "c")
        await world.until(lambda: nothing_leased(world), within=60)
        for lease in leases:
            row = ledger.lease(lease_id(lease["spec"]["bid"]["uid"]))
            assert row is not None
            assert row.weight == GPU_WEIGHT * float(row.share)

    played(story, FLEET, "trainer", "chat")


def test_a_pod_that_asks_for_a_mig_instance_runs_on_one() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        wanted = {"nvidia.com/mig-1g.10gb": "1"}
        await plane.create(POD, pod("small", limits=wanted), "default")
        await until_phase(world, "Running", "small")
        (node,) = (await plane.list(NODE)).items
        assert node["status"]["capacity"]["nvidia.com/mig-1g.10gb"] == "1"
        (lease,) = (await world.client().list(GPU_LEASE)).items
        (device,) = lease["spec"]["devices"]
        assert (device["share"], device["slots"]) == ("1g.10gb", [2])
        (host_pod,) = (await world.client().list(POD)).items
        resources = host_pod["spec"]["containers"][0]["resources"]
        assert resources["claims"] == [{"name": "gpus"}]
        assert not resources.get("limits")
        # The node has made it, and says so in the claim.
        assert instances(world) == [Slot("1g.10gb", 2)]
        (claim,) = (await world.client().list(RESOURCE_CLAIM)).items
        (told,) = claim["status"]["devices"]
        assert told["device"] == "gpu-0-mig-1g10gb-2"
        assert told["data"]["uuid"].startswith("MIG-")
        (shown,) = (await plane.list(RESOURCE_SLICE)).items[0]["spec"]["devices"]
        assert shown["attributes"]["type"] == {"string": "mig"}
        assert shown["attributes"]["parentUUID"] == {"string": "GPU-h100-a-0"}
        assert "uuid" not in shown["attributes"], "the whole card is not what was leased"
        assert shown["capacity"]["memory"]["value"] == "10Gi"
        await world.kill("node")
        await world.start("node")
        await world.until(lambda: is_there(world, Slot("1g.10gb", 2)), within=60)
        # What no pool is cut into is refused by name.
        await plane.create(POD, pod("odd", limits={"nvidia.com/mig-2g.20gb": "1"}), "default")

        async def refused() -> bool:
            found = await plane.get(POD, "odd", "default")
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any(c.get("reason") == "ShapeNotSold" for c in conditions)

        await world.until(refused, within=60)
        await until_phase(world, "Succeeded", "small")
        assert instances(world) == []

    played(story, FLEET, "trainer", "chat")


def instances(world: World) -> list[Slot]:
    assert world.nodes is not None
    cards = world.nodes.life.partitions("h100-a")
    assert cards is not None
    return cards._instances.current("GPU-h100-a-0")


async def is_there(world: World, slot: Slot) -> bool:
    return instances(world) == [slot]


def test_a_mig_pod_that_is_deleted_takes_its_instance_with_it() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        marks = {"bidplane.dev__simulated_seconds": "9000"}
        for name, profile in (("small", "1g.10gb"), ("large", "3g.40gb")):
            limits = {f"nvidia.com/mig-{profile}": "1"}
            await plane.create(POD, pod(name, limits=limits, **marks), "default")
        await until_phase(world, "Running", "small", "large")
        assert instances(world) == [Slot("1g.10gb", 2), Slot("3g.40gb", 4)]
        await plane.delete(POD, "small", "default")
        await world.until(lambda: is_there(world, Slot("3g.40gb", 4)), within=60)
        await plane.delete(POD, "large", "default")
        await world.until(lambda: nothing_leased(world), within=120)
        assert instances(world) == []

    played(story, FLEET, "trainer", "chat")


def test_a_claim_of_the_mig_class_is_given_a_leased_instance() -> None:
    """As NVIDIA's driver has it: class `mig.nvidia.com`, chosen by its profile."""

    async def story(world: World) -> None:
        plane = world.client("trainer")
        bid = {"apiVersion": BID.api_version, "kind": "Bid", "metadata": {"name": "mine"}}
        spec = {"gpus": 1, "share": "3g.40gb", "maxPrice": "1.00", "pool": "h100"}
        await plane.create(BID, {**bid, "spec": spec}, "default")
        profile = 'device.attributes["gpu.bidplane.dev"].profile == "3g.40gb"'
        exactly = {
            "deviceClassName": "mig.nvidia.com",
            "selectors": [{"cel": {"expression": profile}}],
        }
        requests = [{"name": "part", "exactly": exactly}]
        claim = {"metadata": {"name": "part"}, "spec": {"devices": {"requests": requests}}}
        await plane.create(RESOURCE_CLAIM, claim, "default")
        through_bid: dict[str, Any] = {"bidplane.dev__bid": "mine"}
        wants = pod("user", **through_bid)
        wants["spec"]["resourceClaims"] = [{"name": "part", "resourceClaimName": "part"}]
        wants["spec"]["containers"][0]["resources"] = {"claims": [{"name": "part"}]}
        await plane.create(POD, wants, "default")
        await until_phase(world, "Running", "user")
        assert instances(world) == [Slot("3g.40gb", 4)]
        (pinned,) = (await world.client().list(RESOURCE_CLAIM)).items
        (result,) = pinned["status"]["allocation"]["devices"]["results"]
        assert result["device"] == "gpu-0-mig-3g40gb-4"
        await until_phase(world, "Succeeded", "user")
        assert instances(world) == [], "though the lease goes on"

    played(story, FLEET, "trainer", "chat")


def test_a_claim_of_the_mig_class_bids_for_its_profile() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        profile = 'device.attributes["gpu.bidplane.dev"].profile == "1g.10gb"'
        exactly = {
            "deviceClassName": "mig.nvidia.com",
            "selectors": [{"cel": {"expression": profile}}],
        }
        requests = [{"name": "part", "exactly": exactly}]
        claim = {"metadata": {"name": "part"}, "spec": {"devices": {"requests": requests}}}
        await plane.create(RESOURCE_CLAIM, claim, "default")
        wants = pod("user")
        wants["spec"]["resourceClaims"] = [{"name": "part", "resourceClaimName": "part"}]
        wants["spec"]["containers"][0]["resources"] = {"claims": [{"name": "part"}]}
        await plane.create(POD, wants, "default")
        await until_phase(world, "Running", "user")
        assert instances(world) == [Slot("1g.10gb", 2)]
        (bid,) = (await plane.list(BID)).items
        assert bid["spec"]["share"] == "1g.10gb"
        await until_phase(world, "Succeeded", "user")
        await world.until(lambda: nothing_leased(world), within=60)

    played(story, FLEET, "trainer", "chat")


def test_a_mig_instance_that_cannot_be_made_costs_nothing() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        assert world.nodes is not None
        assert world.ledger is not None
        in_the_way = Slot("3g.40gb", 0)
        cards = world.nodes.life.partitions("h100-a")._instances  # type: ignore[union-attr]
        cards.create("GPU-h100-a-0", in_the_way)  # by hand: nothing the node may unmake
        limits = {"nvidia.com/mig-1g.10gb": "1"}
        await plane.create(POD, pod("small", limits=limits), "default")

        async def told() -> bool:
            events = (await plane.list(EVENT)).items
            return any(e["reason"] == "FailedPrepareDynamicResources" for e in events)

        await world.until(told, within=60)
        await asyncio.sleep(600)
        (lease,) = world.ledger.live_leases()
        assert lease.meter(round(world.clock.now() * 1000)).balance <= 0
        assert lease.charged == 0
        cards.destroy("GPU-h100-a-0", in_the_way)
        await until_phase(world, "Succeeded", "small")
        await world.until(lambda: nothing_leased(world), within=60)
        ended = world.ledger.lease(lease.id)
        assert ended is not None
        # Twenty seconds of a seventh at the floor, and the rounds it takes to notice; not 600.
        assert 0 < ended.charged <= 40 * 100_000 // 7 // 3600 + 1

    played(story, FLEET, "trainer", "chat")


def gang(count: int, gpus: int, name: str = "train", **more: str) -> list[dict[str, Any]]:
    marks = {"bidplane.dev__gang": name, "bidplane.dev__gang_size": str(count), **more}
    limits = {"nvidia.com/gpu": str(gpus)}
    return [pod(f"{name}-{n}", limits=limits, **marks) for n in range(count)]


def test_a_gang_runs_when_all_of_it_can_and_ends_together() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        first, second = gang(2, 2)
        await plane.create(POD, first, "default")

        async def waits() -> bool:
            found = await plane.get(POD, "train-0", "default")
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any(c.get("reason") == "WaitingForGang" for c in conditions)

        await world.until(waits, within=60)
        await plane.create(POD, second, "default")
        await until_phase(world, "Running", "train-0", "train-1")
        (bid,) = (await plane.list(BID)).items
        assert (bid["spec"]["gpus"], bid["spec"]["blocks"]) == (2, 2)
        nodes = {(await plane.get(POD, n, "default"))["spec"]["nodeName"]
                 for n in ("train-0", "train-1")}  # fmt: skip
        assert len(nodes) == 2
        leases = (await world.client().list(GPU_LEASE)).items
        assert sorted(lease["spec"]["node"] for lease in leases) == ["a100-a", "a100-b"]
        assert world.ledger is not None
        (row,) = world.ledger.live_leases()  # one win, one hold, one end
        assert (row.gpus, row.parts) == (4, (2, 2))
        await until_phase(world, "Succeeded", "train-0", "train-1")
        await world.until(lambda: nothing_leased(world), within=60)

    played(story, FLEET, "trainer", "chat")


def test_a_gang_is_outbid_together_and_comes_back_together() -> None:
    async def story(world: World) -> None:
        plane, rival = world.client("trainer"), world.client("chat")
        for member in gang(2, 2, **{"bidplane.dev__simulated_seconds": "60"}):
            await plane.create(POD, member, "default")
        await until_phase(world, "Running", "train-0", "train-1")
        await asyncio.sleep(5)
        answer = pod("answer", limits={"nvidia.com/gpu": "1"}, **{
            "bidplane.dev__max_price": "9.00", "bidplane.dev__pool": "a100",
        })  # fmt: skip
        await rival.create(POD, answer, "default")
        await until_phase(world, "Running", "answer", plane="chat")
        # One GPU was taken: nobody of the gang runs with what is left.
        pods = (await world.client().list(POD)).items
        running = [p for p in pods if (p.get("status") or {}).get("phase") == "Running"]
        assert [p["metadata"]["labels"][labels.AGENT] for p in running] == ["chat"]
        await until_phase(world, "Succeeded", "answer", plane="chat")
        await until_phase(world, "Succeeded", "train-0", "train-1")
        await world.until(lambda: nothing_leased(world), within=60)

    played(story, FLEET, "trainer", "chat")


def test_a_lease_bid_for_by_hand_is_used_by_pods_that_name_it() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        spec = {"gpus": 2, "blocks": 2, "maxPrice": "1.00", "pool": "a100"}
        bid = {"apiVersion": BID.api_version, "kind": "Bid", "metadata": {"name": "mine"}}
        await plane.create(BID, {**bid, "spec": spec}, "default")
        for name in ("a", "b"):
            marks = {"bidplane.dev__bid": "mine"}
            await plane.create(POD, pod(name, limits={"nvidia.com/gpu": "2"}, **marks), "default")
        await until_phase(world, "Succeeded", "a", "b")
        # It is its author's to end.
        assert len((await world.client().list(GPU_LEASE)).items) == 2
        (one, _) = (await plane.list(GPU_LEASE)).items
        await plane.delete(GPU_LEASE, one["metadata"]["name"], "default")
        await world.until(lambda: nothing_leased(world), within=60)

    played(story, FLEET, "trainer", "chat")


async def paced(world: World, name: str, strategy: str, **spec: str) -> None:
    made = agent(name)
    made["spec"] |= {"strategy": strategy, **spec}
    await world.client().create(AGENT, made, None)

    async def open_() -> bool:
        found = await world.client().get(AGENT, name, None)
        return labels.WALLET_FINALIZER in found["metadata"].get("finalizers", ())

    await world.until(open_, within=60)


def test_a_thrifty_pod_begins_low_and_raises_its_bid_until_it_wins() -> None:
    async def story(world: World) -> None:
        await paced(world, "saver", "thrifty", maxPrice="0.20")
        plane = world.client("saver")
        await plane.create(POD, pod("later", limits={"nvidia.com/gpu": "1"}), "default")

        async def waits() -> bool:
            bids = (await plane.list(BID)).items
            return any((b.get("status") or {}).get("reason") == "BelowReserve" for b in bids)

        await world.until(waits, within=60)
        (bid,) = (await plane.list(BID)).items
        first = bid["spec"]["maxPrice"]
        assert first.startswith("0.05")
        began = world.clock.now()
        await world.until(lambda: phase(world, "later", "Running", "saver"), within=3600)
        assert world.clock.now() - began > 600, "the floor is a tenth: it takes a third of an hour"
        (bid,) = (await plane.list(BID)).items
        assert first < bid["spec"]["maxPrice"] < "0.12"

    played(story, FLEET, "trainer", "chat")


def test_a_steady_agent_offers_what_its_wallet_pays_for_all_its_pods() -> None:
    async def story(world: World) -> None:
        await paced(world, "even", "steady", maxPrice="1.00", refill="1.50")
        plane = world.client("even")
        wanted = {"nvidia.com/gpu": "1"}
        for name in ("a", "b", "c"):
            marks = {"bidplane.dev__simulated_seconds": "100", "bidplane.dev__pool": "a100"}
            await plane.create(POD, pod(name, limits=wanted, **marks), "default")
        await until_phase(world, "Running", "a", "b", "c", plane="even")
        assert world.ledger is not None
        offers = [lease.max_price for lease in world.ledger.live_leases()]
        assert len(offers) == 3
        # A third of the wallet each, of the first refill and of what has accrued since. Whichever
        # bid was seen before the others offered more, as a running lease's bid never falls.
        assert 500_000 <= min(offers) < 510_000
        assert max(offers) <= 1_000_000
        (bid, *_) = (await plane.list(BID)).items
        assert "maxPrice" not in bid["spec"] or not bid["spec"]["maxPrice"]

    played(story, FLEET, "trainer", "chat")
