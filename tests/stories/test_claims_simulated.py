"""
Claims as people write them, through the whole wiring: what is served, and what is refused with the
line to write instead; never left waiting without a word.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api import labels
from bidplane.api.kinds import BID, GPU_LEASE, POD, RESOURCE_CLAIM, Kind
from bidplane.node.fleet import Card, Fleet, NodeDeclaration
from bidplane.sim.world import World

from .playing import played, said

# Two cards on sixteen lanes and one on four, beside each other; and one of each kind, apart.
BOX = Fleet(
    nodes=[
        NodeDeclaration(
            name="box", product="RTX-6000", cards=[Card(width=16), Card(width=16), Card(width=4)]
        ),
        NodeDeclaration(name="wide", product="RTX-6000", cards=[Card(width=16)]),
        NodeDeclaration(name="slim", product="RTX-6000", cards=[Card(width=4)]),
    ]
)
FLEET = Fleet(nodes=[NodeDeclaration(name="h100-a", product="H100", gpus=8)])
TEMPLATE = Kind("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
BETA = Kind("resource.k8s.io", "v1beta1", "ResourceClaimTemplate", "resourceclaimtemplates")
TAUGHT = "device.attributes['pcie'].linkWidth == 16"
# A blog's manifest: v1beta1, the request's fields flat, an attribute nobody publishes.
BLOG = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "tp4-coherent-x16"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpus",
                        "deviceClassName": "gpu.nvidia.com",
                        "allocationMode": "ExactCount",
                        "count": 4,
                        "selectors": [{"cel": {"expression": TAUGHT}}],
                    }
                ],
                "constraints": [
                    {"requests": ["gpus"], "matchAttribute": "bidplane.dev/linkDomain"}
                ],
            }
        }
    },
}


def pod(name: str, **claim: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpus"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {labels.SIMULATED_SECONDS: "30"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "resourceClaims": [{"name": "gpus", **claim}],
        },
    }


def claim(name: str, count: int, *selectors: str) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": "gpu.bidplane.dev", "count": count}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    one_domain = {"requests": ["gpus"], "matchAttribute": "bidplane.dev/linkDomain"}
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {"name": name},
        "spec": {
            "devices": {
                "requests": [{"name": "gpus", "exactly": exactly}],
                "constraints": [one_domain],
            }
        },
    }


def lanes(width: int) -> str:
    """A selector."""
    return f'device.attributes["bidplane.dev"].pcieLinkWidth == {width}'


def requests(name: str, **counts: int) -> dict[str, Any]:
    """A claim of so many cards on sixteen lanes (`wide`) and on four (`slim`)."""
    widths = {"wide": 16, "slim": 4}
    made = [
        {
            "name": kind,
            "exactly": {
                "deviceClassName": "gpu.bidplane.dev",
                "count": count,
                "selectors": [{"cel": {"expression": lanes(widths[kind])}}],
            },
        }
        for kind, count in counts.items()
    ]
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {"name": name},
        "spec": {"devices": {"requests": made}},
    }


async def phase(world: World, name: str) -> str:
    found = await world.client("trainer").get(POD, name, "default")
    return str((found.get("status") or {}).get("phase"))


def test_the_form_a_blog_teaches_is_refused_with_the_line_that_works() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(BETA, BLOG, "default")
        template = {"resourceClaimTemplateName": "tp4-coherent-x16"}
        await plane.create(POD, pod("blog", **template), "default")
        line = (await said(world, "blog", "BadClaim")).partition("write: ")[2]
        assert line == (
            '"pcieLinkWidth" in device.attributes["bidplane.dev"] &&'
            ' device.attributes["bidplane.dev"].pcieLinkWidth == 16'
        )
        # The same manifest with that line in it, still v1beta1: it runs, on four.
        fixed: Any = {**BLOG, "metadata": {"name": "fixed"}}
        spec = {**BLOG["spec"]["spec"]["devices"]["requests"][0]}  # type: ignore[index]
        spec["selectors"] = [{"cel": {"expression": line}}]
        devices = {**BLOG["spec"]["spec"]["devices"], "requests": [spec]}  # type: ignore[index]
        fixed["spec"] = {"spec": {"devices": devices}}
        await plane.create(BETA, fixed, "default")
        await plane.create(POD, pod("works", resourceClaimTemplateName="fixed"), "default")

        async def runs() -> bool:
            return await phase(world, "works") == "Running"

        await world.until(runs, within=120)
        made = [c for c in (await plane.list(RESOURCE_CLAIM)).items if "allocation" in c["status"]]
        assert [len(c["status"]["allocation"]["devices"]["results"]) for c in made] == [4]

    played(story, FLEET)


def test_a_claim_that_pods_share_is_one_lease_until_the_last_of_them_ends() -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        await plane.create(RESOURCE_CLAIM, claim("both", 2), "default")

        async def runs(name: str, seconds: int) -> None:
            made = pod(name, resourceClaimName="both")
            made["metadata"]["annotations"][labels.SIMULATED_SECONDS] = str(seconds)
            await plane.create(POD, made, "default")

        async def leases() -> list[Any]:
            return list((await host.list(GPU_LEASE)).items)

        async def are(*names: str, wanted: str = "Running") -> None:
            async def there() -> bool:
                return {await phase(world, name) for name in names} == {wanted}

            await world.until(there, within=400)

        await runs("first", 40)
        await runs("second", 300)
        await are("first", "second")
        (lease,) = await leases()
        assert len(lease["spec"]["devices"]) == 2, "one claim, one lease"
        assert len((await plane.list(BID)).items) == 1, "one claim, one bid"
        where = [(await plane.get(POD, name, "default"))["spec"] for name in ("first", "second")]
        assert {spec["nodeName"] for spec in where} == {lease["metadata"]["name"]}
        copies = (await host.list(POD)).items
        shared = {one["spec"]["resourceClaims"][0]["resourceClaimName"] for one in copies}
        assert len(shared) == 1, "one claim on the host, too: nothing is given out twice"
        # Who bid for it is done: the other goes on, and a third may join it.
        await are("first", wanted="Succeeded")
        await runs("third", 30)
        await are("second", "third")
        (kept,) = await leases()
        assert kept["metadata"]["uid"] == lease["metadata"]["uid"]
        await are("third", wanted="Succeeded")
        assert await leases()
        await are("second", wanted="Succeeded")

        async def gone() -> bool:
            return not await leases()

        await world.until(gone, within=120)

    played(story, FLEET)


def test_all_is_a_whole_domain() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        everything = claim("everything", 1)
        request = everything["spec"]["devices"]["requests"][0]
        request["exactly"] = {"deviceClassName": "gpu.bidplane.dev", "allocationMode": "All"}
        await plane.create(RESOURCE_CLAIM, everything, "default")
        await plane.create(POD, pod("greedy", resourceClaimName="everything"), "default")

        async def runs() -> bool:
            return await phase(world, "greedy") == "Running"

        await world.until(runs, within=120)
        (lease,) = (await world.client().list(GPU_LEASE)).items
        assert len(lease["spec"]["devices"]) == 8
        found = await plane.get(RESOURCE_CLAIM, "everything", "default")
        assert len(found["status"]["allocation"]["devices"]["results"]) == 8

    played(story, FLEET)


def test_nine_of_a_domain_of_eight_is_refused_with_what_there_is() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(RESOURCE_CLAIM, claim("nine", 9), "default")
        await plane.create(POD, pod("nine", resourceClaimName="nine"), "default")
        message = await said(world, "nine", "LargerThanEveryDomain")
        assert "8" in message, message

    played(story, FLEET)


def test_an_attribute_nobody_has_is_refused_by_name() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        odd = 'device.attributes["bidplane.dev"].linkdomain == "x"'
        await plane.create(RESOURCE_CLAIM, claim("odd", 2, odd), "default")
        await plane.create(POD, pod("odd", resourceClaimName="odd"), "default")
        message = await said(world, "odd", "BadBid")
        assert "did you mean bidplane.dev/linkDomain?" in message, message

    played(story, FLEET)


def test_alike_in_what_their_driver_says_is_what_a_block_is() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        alike = claim("alike", 2)
        # Drivers leave out their own name before an attribute; claims never do.
        match = {"matchAttribute": "gpu.bidplane.dev/productName"}
        alike["spec"]["devices"]["constraints"] = [match]
        await plane.create(RESOURCE_CLAIM, alike, "default")
        await plane.create(POD, pod("alike", resourceClaimName="alike"), "default")

        async def runs() -> bool:
            return await phase(world, "alike") == "Running"

        await world.until(runs, within=60)

    played(story, FLEET)


@pytest.mark.parametrize("attribute", ["example.com/rack", "gpu.bidplane.dev/memory"])
def test_alike_in_what_no_device_has_is_refused_and_nothing_is_won(attribute: str) -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        odd = claim("alike", 2)
        odd["spec"]["devices"]["constraints"] = [{"matchAttribute": attribute}]
        await plane.create(RESOURCE_CLAIM, odd, "default")
        await plane.create(POD, pod("alike", resourceClaimName="alike"), "default")
        message = await said(world, "alike", "ConstraintNotSold")
        assert f"'{attribute}'" in message, message
        assert not (await world.client().list(GPU_LEASE)).items

    played(story, FLEET)


def test_several_requests_are_one_bid_for_all_of_them_in_one_machine() -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        await plane.create(RESOURCE_CLAIM, requests("both", wide=2, slim=1), "default")
        await plane.create(POD, pod("both", resourceClaimName="both"), "default")

        async def runs() -> bool:
            return await phase(world, "both") == "Running"

        await world.until(runs, within=120)
        (bid,) = (await plane.list(BID)).items
        assert bid["spec"]["oneNode"] is True
        assert [need["gpus"] for need in bid["spec"]["also"]] == [1]
        (lease,) = (await host.list(GPU_LEASE)).items
        assert lease["spec"]["node"] == "box"
        held = {device["name"] for device in lease["spec"]["devices"]}
        assert len(held) == 3
        claimed = await plane.get(RESOURCE_CLAIM, "both", "default")
        results = claimed["status"]["allocation"]["devices"]["results"]
        assert sorted(one["request"] for one in results) == ["slim", "wide", "wide"]
        assert {one["device"] for one in results} == held
        # And what runs has all three, on the host.
        (running,) = [p for p in (await host.list(POD)).items if p["spec"]["nodeName"] == "box"]
        (name,) = [one["resourceClaimName"] for one in running["spec"]["resourceClaims"]]
        pinned = await host.get(RESOURCE_CLAIM, name, running["metadata"]["namespace"])
        results = pinned["status"]["allocation"]["devices"]["results"]
        assert {one["device"] for one in results} == held

    played(story, BOX)


def test_with_room_in_one_lot_only_it_waits_and_is_told_which_is_taken() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        # The card on four lanes of the box goes first, to a pod that needs no other beside it.
        await plane.create(RESOURCE_CLAIM, requests("one", wide=1, slim=1), "default")
        await plane.create(POD, pod("one", resourceClaimName="one"), "default")

        async def runs(name: str = "one") -> bool:
            return await phase(world, name) == "Running"

        await world.until(runs, within=120)
        await plane.create(RESOURCE_CLAIM, requests("both", wide=1, slim=1), "default")
        await plane.create(POD, pod("both", resourceClaimName="both"), "default")
        message = await said(world, "both", "NoFreeBlock")
        # One on four lanes is free in another machine, one on sixteen in this: never both.
        assert "1 GPU in rtx-6000/" in message, message
        assert "in one machine, all or none" in message, message
        assert "of the same agent has the GPUs" in message, message
        assert await phase(world, "both") == "Pending"

        async def served() -> bool:
            return await runs("both")

        await world.until(served, within=300)  # when the first has ended

    played(story, BOX)


def test_what_no_machine_has_together_is_refused_by_name() -> None:
    async def story(world: World) -> None:
        plane = world.client("trainer")
        await plane.create(RESOURCE_CLAIM, requests("two", wide=1, slim=1), "default")
        await plane.create(POD, pod("two", resourceClaimName="two"), "default")
        message = await said(world, "two", "NoMachineHasAll")
        assert message.startswith("no machine has all of what it asks for")

    played(story, Fleet(nodes=BOX.nodes[1:]))


def test_a_gang_of_such_pods_has_one_machine_for_each() -> None:
    async def story(world: World) -> None:
        plane, host = world.client("trainer"), world.client()
        made = requests("both", wide=1, slim=1)
        template = {
            "apiVersion": RESOURCE_CLAIM.api_version,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "both"},
            "spec": {"spec": made["spec"]},
        }
        await plane.create(TEMPLATE, template, "default")
        for name in ("rank-0", "rank-1"):
            one = pod(name, resourceClaimTemplateName="both")
            one["metadata"]["annotations"] |= {labels.GANG: "ranks", labels.GANG_SIZE: "2"}
            await plane.create(POD, one, "default")

        async def run() -> bool:
            return {await phase(world, f"rank-{n}") for n in range(2)} == {"Running"}

        await world.until(run, within=120)
        (bid,) = (await plane.list(BID)).items
        assert (bid["spec"]["blocks"], bid["spec"]["oneNode"]) == (2, True)
        leases = (await host.list(GPU_LEASE)).items
        assert sorted(lease["spec"]["node"] for lease in leases) == ["box", "box-2"]
        assert {len(lease["spec"]["devices"]) for lease in leases} == {2}

    second = msgspec.structs.replace(BOX.nodes[0], name="box-2", cards=BOX.nodes[0].cards[1:])
    played(story, Fleet(nodes=[BOX.nodes[0], second]))
