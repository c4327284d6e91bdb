"""A pod with a MIG instance on a node of this machine: made, seen by its program, gone with it."""

import msgspec

from bidplane.api.kinds import RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.core.devices.mig import Slot
from bidplane.node.fleet import NodeDeclaration
from bidplane.node.inventory import DeclaredDevices

PRINTS = "echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $BIDPLANE_CDI_DEVICES; exec sleep 3600"


def gpus(claim):
    return {"resourceClaims": [{"name": "gpus", "resourceClaimName": claim}]}


CLAIMS = {"claims": [{"name": "gpus"}]}


class Card:
    """What is on the box's first card, as a new agent would find it."""

    def __init__(self, box):
        self._box = box

    @property
    def slots(self):
        file = self._box.folder / "state" / "cards.json"
        known = msgspec.json.decode(file.read_bytes(), type=dict[str, list[Slot]])
        return sorted(known[f"GPU-{self._box.name}-0"])


async def cut(box):
    await box.stop()
    node = NodeDeclaration(name=box.name, product="H100", memory="80Gi", gpus=2, mig=True)
    box.inventory = DeclaredDevices(node)
    await box.start()
    return Card(box)


async def generations(box):
    found = await box.client.list(RESOURCE_SLICE, fields=f"spec.nodeName={box.name}")
    assert len(found.items) == 3
    return {one["spec"]["pool"]["generation"] for one in found.items}


async def status(box, claim):
    found = await box.client.get(RESOURCE_CLAIM, claim, box.space)
    return found["status"].get("devices") or []


def test_an_instance_is_made_seen_and_unmade(box):
    async def story(box):
        card = await cut(box)
        await box.claim("small", "gpu-0-mig-1g10gb-2")
        await box.create("train", PRINTS, pod=gpus("small"), resources=CLAIMS)
        await box.until_phase("train", "Running")
        assert card.slots == [Slot("1g.10gb", 2)]
        (told,) = await status(box, "small")
        uuid = told["data"]["uuid"]
        assert uuid.startswith("MIG-")
        assert told["conditions"][0]["reason"] == "InstanceMade"
        await box.until_said("train", f"{uuid} {uuid} nvidia.com/gpu={uuid}\n")
        # A restart of the agent finds it, and makes nothing twice.
        before = await generations(box)
        await box.stop()
        await box.start()
        assert await generations(box) == before, "nothing new to publish"
        await box.until_said("train", f"{uuid} {uuid} nvidia.com/gpu={uuid}\n")
        assert card.slots == [Slot("1g.10gb", 2)]
        pod = await box.get("train")
        (health,) = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0][
            "resources"
        ]
        assert health["health"] == "Healthy"
        await box.delete("train")
        await box.until(lambda: card.slots == [])

    box(story)


def test_a_pod_that_ended_while_the_agent_was_away_leaves_no_instance(box):
    async def story(box):
        card = await cut(box)
        await box.claim("small", "gpu-0-mig-1g10gb-2")
        await box.create("train", PRINTS, pod=gpus("small"), resources=CLAIMS)
        await box.until_phase("train", "Running")
        await box.stop()
        await box.delete("train", grace_seconds=0)
        assert card.slots == [Slot("1g.10gb", 2)]
        await box.start()
        await box.until(lambda: card.slots == [])

    box(story)


def test_an_instance_that_cannot_be_made_is_told_and_tried_again(box):
    async def story(box):
        card = await cut(box)
        node = box.node
        cards = node.partitions._instances
        cards.create(f"GPU-{box.name}-0", Slot("3g.40gb", 0))  # somebody did, by hand
        await box.claim("small", "gpu-0-mig-1g10gb-2")
        await box.create("train", PRINTS, pod=gpus("small"), resources=CLAIMS)
        said = await box.until_event("train", "FailedPrepareDynamicResources")
        assert "1g.10gb at 2 cannot be made" in said
        assert "3g.40gb at 0 share memory slice 2" in said

        async def refused():
            told = await status(box, "small")
            return told and told[0]["conditions"][0]

        condition = await box.until(refused)
        assert (condition["status"], condition["reason"]) == ("False", "InstanceNotMade")
        assert "share memory slice 2" in condition["message"]
        assert await box.phase("train") == "Pending"
        assert card.slots == [Slot("3g.40gb", 0)]
        cards.destroy(f"GPU-{box.name}-0", Slot("3g.40gb", 0))
        box.clock.advance(60)
        await box.until_phase("train", "Running")
        assert (await status(box, "small"))[0]["conditions"][0]["status"] == "True"

    box(story)


def test_an_instance_that_goes_under_a_running_pod_is_told(box):
    async def story(box):
        card = await cut(box)
        await box.claim("small", "gpu-0-mig-1g10gb-2")
        await box.create("train", PRINTS, pod=gpus("small"), resources=CLAIMS)
        await box.until_phase("train", "Running")
        cards = box.node.partitions._instances
        cards.destroy(f"GPU-{box.name}-0", Slot("1g.10gb", 2))  # by hand, from under it
        box.clock.advance(31)
        await box.until(lambda: box.node.partitions.lost)
        box.clock.advance(6)
        lost = await box.until_container(
            "train",
            lambda c: c["allocatedResourcesStatus"][0]["resources"][0]["health"] == "Unhealthy",
        )
        assert lost["state"].get("running"), "its owner decides"
        assert "gpu-0-mig-1g10gb-2" in await box.until_event("train", "DeviceLost")
        await box.delete("train")
        await box.until(lambda: repr(box.node.partitions) == "<Partitions none>")
        assert card.slots == []

    box(story)
