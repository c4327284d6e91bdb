"""
Claims for some of a GPU's memory, through the whole wiring: each is the least part that covers it,
allocated in its plane, paid as that part; and what no pool sells like that is refused by name.
"""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.kinds import (
    BID,
    EVENT,
    GPU_LEASE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    Kind,
)
from bidplane.api.pool import Divides
from bidplane.core.devices.ranges import overlap
from bidplane.ledger import statement
from bidplane.ledger.rounds import explain_bid
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.sim.world import World

from .playing import played, said

FLEET = Fleet(
    nodes=[
        NodeDeclaration(name="h100-a", product="H100", memory="80Gi", gpus=1),
        NodeDeclaration(name="a100-a", product="A100", memory="40Gi", gpus=1),
    ],
    pools=[
        PoolDeclaration(product="H100", divides=Divides.PARTS),
        PoolDeclaration(product="A100"),
    ],
)
TEMPLATE = Kind("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")


def pod(name: str, *, pool: str = "h100", seconds: int = 60, **claim: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
    marks = {labels.SIMULATED_SECONDS: str(seconds), labels.POOL: pool}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": marks},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "resourceClaims": [{"name": "gpu", **(claim or {"resourceClaimName": name})}],
        },
    }


def claim(name: str, **capacity: str) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.bidplane.dev", "capacity": {"requests": capacity}}
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "some", "exactly": exactly}]}},
    }


async def asks(world: World, name: str, *, pool: str = "h100", **capacity: str) -> None:
    plane = world.client("trainer")
    await plane.create(RESOURCE_CLAIM, claim(name, **capacity), "default")
    await plane.create(POD, pod(name, pool=pool), "default")


async def are(world: World, wanted: str, *names: str) -> None:
    async def there() -> bool:
        found = [await world.client("trainer").get(POD, name, "default") for name in names]
        return {(one.get("status") or {}).get("phase") for one in found} == {wanted}

    await world.until(there, within=400)


def test_two_claims_share_a_gpu_and_each_pays_its_part() -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        await asks(world, "twenty", memory="20Gi")
        await asks(world, "nine", memory="9Gi")
        await are(world, "Running", "twenty", "nine")

        leases = {
            lease["spec"]["devices"][0]["share"]: lease
            for lease in (await host.list(GPU_LEASE)).items
        }
        assert sorted(leases) == ["0.1125", "0.25"]
        (quarter,), (ninth,) = (leases[one]["spec"]["devices"] for one in ("0.25", "0.1125"))
        assert (quarter["node"], quarter["name"]) == (ninth["node"], ninth["name"])
        assert not overlap(tuple(quarter["units"]), tuple(ninth["units"]))

        # Allocated in the plane, inside its own lease, all of the part.
        for name, share, taken in (("twenty", "0.25", "20Gi"), ("nine", "0.1125", "9Gi")):
            found = await plane.get(RESOURCE_CLAIM, name, "default")
            (result,) = found["status"]["allocation"]["devices"]["results"]
            assert result["consumedCapacity"] == {"memory": taken}
            assert result["pool"] == leases[share]["metadata"]["name"]
            running = await plane.get(POD, name, "default")
            assert running["spec"]["nodeName"] == result["pool"]
            # And what runs on the host has that part of the GPU, by a claim of its own.
            (copy,) = [
                one
                for one in (await host.list(POD)).items
                if one["metadata"]["labels"][labels.LEASE] == result["pool"]
            ]
            assert copy["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
            (pinned,) = [one["resourceClaimName"] for one in copy["spec"]["resourceClaims"]]
            there = await host.get(RESOURCE_CLAIM, pinned, copy["metadata"]["namespace"])
            (config,) = there["spec"]["devices"]["config"]
            assert config["opaque"]["parameters"]["devices"] == [
                {
                    "name": "gpu-0",
                    "share": share,
                    "units": leases[share]["spec"]["devices"][0]["units"],
                }
            ]

        # What it was rounded to is said by its bid, by the round, and of what it is not.
        ledger = world.ledger
        assert ledger is not None
        for bid in (await plane.list(BID)).items:
            share = {"twenty": "0.25", "nine": "0.1125"}[bid["metadata"]["labels"][labels.POD_NAME]]
            assert bid["status"]["shareSold"] == share
            verdict = explain_bid(ledger, leases[share]["spec"]["bid"]["uid"])
            assert verdict is not None
            assert f"{share} of a GPU in h100" in verdict.sentence
        told = [event["reason"] for event in (await plane.list(EVENT)).items]
        assert told.count("NoIsolation") == 2

        await are(world, "Succeeded", "twenty", "nine")

        async def gone() -> bool:
            return not (await host.list(GPU_LEASE)).items

        await world.until(gone, within=120)
        (wallet,) = ledger.wallets_named("trainer")
        now = int(world.clock.now() * 1000)
        account = statement(ledger, wallet.id.partition("/")[2], now=now)
        assert account is not None
        paid = {
            share: sum(-line.amount for line in account.lines if f"{share} of a GPU" in line.text)
            for share in ("0.25", "0.1125")
        }
        # Both ran for as long at the floor's price: 20Gi cost as much more as they are.
        assert paid["0.1125"] > 0
        assert paid["0.25"] / paid["0.1125"] == pytest.approx(20 / 9, rel=0.1)

    played(story, FLEET)


def test_all_of_its_memory_is_all_of_a_gpu() -> None:
    async def story(world: World) -> None:
        await asks(world, "most", memory="80Gi")
        await are(world, "Running", "most")
        (lease,) = (await world.client().list(GPU_LEASE)).items
        assert not lease["spec"]["devices"][0].get("share")
        found = await world.client("trainer").get(RESOURCE_CLAIM, "most", "default")
        (result,) = found["status"]["allocation"]["devices"]["results"]
        assert result["device"] == "gpu-0"

    played(story, FLEET)


def test_a_claim_that_pods_share_is_one_part_for_all_of_them() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(RESOURCE_CLAIM, claim("both", memory="20Gi"), "default")
        for name in ("first", "second"):
            await plane.create(POD, pod(name, resourceClaimName="both"), "default")
        await are(world, "Running", "first", "second")
        (lease,) = (await world.client().list(GPU_LEASE)).items
        assert lease["spec"]["devices"][0]["share"] == "0.25"

    played(story, FLEET)


def test_a_gang_has_a_part_for_each_of_its_pods() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        template = {
            "apiVersion": RESOURCE_CLAIM.api_version,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "some"},
            "spec": {"spec": claim("some", memory="20Gi")["spec"]},
        }
        await plane.create(TEMPLATE, template, "default")
        for name in ("rank-0", "rank-1"):
            one = pod(name, resourceClaimTemplateName="some")
            one["metadata"]["annotations"] |= {labels.GANG: "ranks", labels.GANG_SIZE: "2"}
            await plane.create(POD, one, "default")
        await are(world, "Running", "rank-0", "rank-1")
        leases = (await world.client().list(GPU_LEASE)).items
        assert [lease["spec"]["devices"][0]["share"] for lease in leases] == ["0.25", "0.25"]
        claims = (await plane.list(RESOURCE_CLAIM)).items
        results = [one["status"]["allocation"]["devices"]["results"][0] for one in claims]
        assert [one["consumedCapacity"] for one in results] == [{"memory": "20Gi"}] * 2
        assert len({one["pool"] for one in results}) == 2

    played(story, FLEET)


def test_what_no_pool_sells_so_is_refused_with_what_to_write() -> None:
    async def story(world: World) -> None:
        await asks(world, "huge", memory="200Gi")
        await asks(world, "whole", pool="a100", memory="20Gi")
        await asks(world, "odd", cores="4")
        await asks(world, "less", memory="-1Gi")
        huge = await said(world, "huge", "SelectsNothing")
        assert "memory] of 200Gi: no GPU that is sold there has so much" in huge
        whole = await said(world, "whole", "ShapeNotSold")
        assert "remove capacity to claim a whole GPU, or name another pool" in whole
        assert "write {memory: 20Gi}" in await said(world, "odd", "BadClaim")
        assert "must be more than 0" in await said(world, "less", "BadClaim")

    played(story, FLEET)


def test_a_claim_for_a_gpu_is_not_given_a_part_that_somebody_bid_for_by_hand() -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        half = {"gpus": 1, "share": "0.5", "pool": "h100", "maxPrice": "1.00"}
        bid = {"apiVersion": BID.api_version, "kind": BID.kind, "metadata": {"name": "half"}}
        await plane.create(BID, {**bid, "spec": half}, "default")

        async def shown() -> bool:
            return bool((await plane.list(RESOURCE_SLICE)).items)

        await world.until(shown, within=120)
        one = claim("one")
        del one["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
        await plane.create(RESOURCE_CLAIM, one, "default")
        await plane.create(POD, pod("one", pool="a100"), "default")
        await are(world, "Running", "one")
        shares = {
            lease["spec"]["pool"]: lease["spec"]["devices"][0].get("share", "")
            for lease in (await host.list(GPU_LEASE)).items
        }
        assert shares == {"h100": "0.5", "a100": ""}

    played(story, FLEET)
