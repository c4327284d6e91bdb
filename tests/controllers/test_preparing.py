"""A host's devices that must be prepared before they are used: the pod is made when they are."""

import pytest

from bidplane.api.kinds import EVENT, POD, RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.node.fleet import NodeDeclaration, machine_of
from bidplane.node.inventory.slices import slices_of

from .conftest import SPACE

ASKED = {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}


async def won(site):
    """A pod that has won two devices, of which the driver prepares the second."""
    for piece in slices_of(machine_of(NodeDeclaration(name="h100-a", product="H100", gpus=2))):
        piece["spec"]["devices"][1] |= ASKED
        await site.host.create(RESOURCE_SLICE, piece)
    await site.create_pod()
    await site.win()
    await site.settle()
    (claim,) = await site.all(site.host, RESOURCE_CLAIM)
    return claim


async def say(site, claim, condition):
    """As the device's driver does."""
    stamp = "2026-01-01T00:00:00Z"
    entry = {"type": condition, "status": "True", "reason": "Said", "lastTransitionTime": stamp}
    where = {"driver": "gpu.bidplane.dev", "pool": "h100-a", "device": "gpu-1"}
    status = {"devices": [{**where, "conditions": [{**entry, "message": ""}]}]}
    name = claim["metadata"]["name"]
    await site.host.patch(RESOURCE_CLAIM, name, {"status": status}, SPACE, subresource="status")
    await site.settle(2)


def test_the_pod_is_made_when_its_devices_are_prepared(stories):
    async def story(site):
        claim = await won(site)
        first, second = claim["status"]["allocation"]["devices"]["results"]
        assert "bindingConditions" not in first
        assert {field: second[field] for field in ASKED} == ASKED
        since = claim["status"]["allocation"]["allocationTimestamp"]
        await site.settle(30)
        assert await site.all(site.host, POD) == []
        (claim,) = await site.all(site.host, RESOURCE_CLAIM)
        assert claim["status"]["allocation"]["allocationTimestamp"] == since, "not anew each look"
        await say(site, claim, "attached")
        (pod,) = await site.all(site.host, POD)
        named = [pod_claim["resourceClaimName"] for pod_claim in pod["spec"]["resourceClaims"]]
        assert named == [claim["metadata"]["name"]]

    stories(story)


@pytest.mark.parametrize("how", ["failed", "too late"])
def test_a_lease_whose_devices_cannot_be_prepared_is_given_back(stories, how):
    async def story(site):
        claim = await won(site)
        if how == "failed":
            await say(site, claim, "broken")
            expected = "h100-a/gpu-1 could not be prepared: broken"
        else:
            await site.settle(590)
            assert not (await site.lease())["metadata"].get("deletionTimestamp")
            await site.settle(15)
            expected = "h100-a/gpu-1 was not prepared in 600 s"
        assert (await site.lease())["metadata"]["deletionTimestamp"], "the exchange is asked"
        assert await site.all(site.host, POD) == []
        events = await site.all(site.plane, EVENT)
        (failed,) = [event for event in events if event["reason"] == "DeviceFailed"]
        assert expected in failed["message"]
        assert failed["type"] == "Warning"
        assert failed["involvedObject"]["kind"] == "Pod"

    stories(story)
